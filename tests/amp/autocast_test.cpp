// SPDX-License-Identifier: Apache-2.0
#include "farandole/amp/autocast.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "farandole/error.h"
#include "support/raised.h"

namespace farandole {
namespace {

using test::raised;
using testing::HasSubstr;

at::ScalarType dtype_of_product() {
  const at::Tensor a = at::ones({2, 2});
  return at::mm(a, a).scalar_type();
}

TEST(Autocast, RunsProductsInItsDtype) {
  {
    const Autocast autocast(at::kCPU, at::kBFloat16);
    EXPECT_EQ(dtype_of_product(), at::kBFloat16);
  }
  EXPECT_EQ(dtype_of_product(), at::kFloat);
}

TEST(Autocast, HasTheDtypeOfTheDeviceWhereNoneIsGiven) {
  const Autocast autocast(at::kCPU);
  EXPECT_EQ(dtype_of_product(), at::kBFloat16);
}

TEST(Autocast, Nests) {
  const Autocast outer(at::kCPU, at::kBFloat16);
  {
    const Autocast off(at::kCPU, {}, false);
    EXPECT_EQ(dtype_of_product(), at::kFloat);
    {
      const Autocast inner(at::kCPU, at::kHalf);
      EXPECT_EQ(dtype_of_product(), at::kHalf);
    }
    EXPECT_EQ(dtype_of_product(), at::kFloat);
  }
  EXPECT_EQ(dtype_of_product(), at::kBFloat16);
}

TEST(Autocast, PutsBackWhatItFoundWhenAnExceptionEndsIt) {
  EXPECT_THROW(
      {
        const Autocast autocast(at::kCPU, at::kHalf, true, false);
        throw std::runtime_error("a forward that fails");
      },
      std::runtime_error);
  EXPECT_EQ(dtype_of_product(), at::kFloat);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  EXPECT_EQ(at::autocast::get_autocast_dtype(at::kCPU), at::kBFloat16);
}

TEST(Autocast, IsOfItsThreadAlone) {
  const Autocast autocast(at::kCPU, at::kBFloat16);
  std::thread([] { EXPECT_EQ(dtype_of_product(), at::kFloat); }).join();
}

TEST(Autocast, CastsAParameterOnceForAllItsUses) {
  for (const bool cache : {true, false}) {
    const Autocast autocast(at::kCPU, at::kBFloat16, true, cache);
    EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), cache);
  }
}

TEST(Autocast, RefusesOtherDtypesAndDevices) {
  EXPECT_THAT(raised<InvalidArgument>([] { Autocast autocast(at::kCPU, at::kFloat); }),
              HasSubstr("Autocast got dtype Float"));
  EXPECT_THAT(raised<InvalidArgument>([] { Autocast autocast(at::kMeta); }),
              HasSubstr("device type 'meta'"));
  EXPECT_EQ(dtype_of_product(), at::kFloat);
}

}  // namespace
}  // namespace farandole
