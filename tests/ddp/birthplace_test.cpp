// SPDX-License-Identifier: Apache-2.0
#include "ddp/birthplace.h"

#include <ATen/ops/empty.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include "support/forked_child.h"

namespace farandole::test {
namespace {

constexpr int64_t kElements = 5000;  // 20,000 bytes: no whole pages
constexpr size_t kBytes = kElements * sizeof(float);

/// Pages that two processes could share, with a place that begins within one of them.
struct Pages {
  static constexpr size_t kAll = 1 << 16;
  std::shared_ptr<void> memory{
      ::mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
      [](void* data) { ::munmap(data, kAll); }};
  float* place = static_cast<float*>(memory.get()) + 16;
  std::shared_ptr<Birthplace> birthplace = Birthplace::of(place, kBytes, memory);
};

/// A tensor in lent memory.
at::Tensor tensor_in(at::DataPtr data) {
  const at::Storage storage(c10::Storage::use_byte_size_t(), kBytes, std::move(data));
  return at::empty({0}).set_(storage, 0, {kElements}, {1});
}

TEST(Birthplace, WhatIsComputedInItLiesInThePlace) {
  const Pages pages;
  pages.birthplace->open();
  at::Tensor tensor = tensor_in(pages.birthplace->lend());
  EXPECT_TRUE(pages.birthplace->holds(tensor));
  tensor.fill_(3);
  EXPECT_EQ(pages.place[0], 3);
  EXPECT_EQ(pages.place[kElements - 1], 3);
  EXPECT_EQ(pages.place[-1], 0);
  EXPECT_EQ(pages.place[kElements], 0);
}

TEST(Birthplace, IsLentOnceAndOnlyWhenOpen) {
  const Pages pages;
  EXPECT_FALSE(pages.birthplace->lend());
  pages.birthplace->open();
  {
    const at::DataPtr lent = pages.birthplace->lend();
    EXPECT_TRUE(lent);
    EXPECT_FALSE(pages.birthplace->lend());
  }
  EXPECT_FALSE(pages.birthplace->lend());  // what was born there stays
  pages.birthplace->open();
  pages.birthplace->evict();
  EXPECT_FALSE(pages.birthplace->lend());
  pages.birthplace->open();
  EXPECT_TRUE(pages.birthplace->lend());
}

TEST(Birthplace, AnEvictedTensorKeepsItsContents) {
  const Pages pages;
  pages.birthplace->open();
  const at::Tensor tensor = tensor_in(pages.birthplace->lend());
  auto* const values = tensor.mutable_data_ptr<float>();
  std::iota(values, values + kElements, 1.0F);
  pages.birthplace->evict();
  EXPECT_FALSE(pages.birthplace->holds(tensor));
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(pages.place[i], static_cast<float>(i + 1));
  std::fill_n(pages.place, kElements, -1.0F);  // as peers do
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(values[i], static_cast<float>(i + 1));
  values[0] = 7;
  EXPECT_EQ(pages.place[0], -1);
}

TEST(Birthplace, IsThePlaceAgainWhenTheEvictedTensorIsGone) {
  const Pages pages;
  for (int round = 0; round < 3; ++round) {
    pages.birthplace->open();
    const at::Tensor tensor = tensor_in(pages.birthplace->lend());
    tensor.fill_(round);
    pages.birthplace->evict();
    pages.birthplace->open();
    EXPECT_FALSE(pages.birthplace->lend()) << "while a tensor has those addresses";
  }
  pages.birthplace->open();
  tensor_in(pages.birthplace->lend()).fill_(5);
  EXPECT_EQ(pages.place[kElements / 2], 5);
}

TEST(Birthplace, IsNoPlaceForTensorsThatAreKept) {
  const Pages pages;
  int lent = 0;
  for (int round = 0; round < 100; ++round) {
    pages.birthplace->open();
    at::DataPtr data = pages.birthplace->lend();
    if (data) ++lent;
    pages.birthplace->evict();
  }
  EXPECT_GT(lent, 1);
  EXPECT_LT(lent, 10);
}

TEST(Birthplace, LivesAsLongAsATensorInIt) {
  auto pages = std::make_unique<Pages>();
  pages->birthplace->open();
  const at::Tensor tensor = tensor_in(pages->birthplace->lend());
  tensor.fill_(2);
  pages.reset();
  EXPECT_EQ(tensor.sum().item<float>(), 2.0F * kElements);
}

TEST(Birthplace, RefusesPlacesThatTensorsMayNotBeginAt) {
  const Pages pages;
  EXPECT_EQ(Birthplace::of(pages.place + 1, kBytes, pages.memory), nullptr);
  EXPECT_EQ(Birthplace::of(pages.place, 0, pages.memory), nullptr);
}

TEST(Birthplace, AForkedChildMayLetGo) {
  Pages pages;
  pages.birthplace->open();
  at::Tensor tensor = tensor_in(pages.birthplace->lend());
  tensor.fill_(4);
  const pid_t child = ::fork();
  if (child == 0) {
    tensor.reset();
    const bool lends = static_cast<bool>(pages.birthplace->lend());
    pages.birthplace.reset();
    ::_exit(lends ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tensor.sum().item<float>(), 4.0F * kElements);
  EXPECT_EQ(pages.place[0], 4);
}

/// Before and after it was evicted, and when the place is lent again.
TEST(Birthplace, AForkedChildHasATensorThereForItself) {
  const Pages pages;
  for (int round = 0; round < 3; ++round) {
    pages.birthplace->open();
    const at::Tensor tensor = tensor_in(pages.birthplace->lend());
    auto* const values = tensor.mutable_data_ptr<float>();
    std::fill_n(values, kElements, 5.0F);
    for (const bool evicts : {false, true}) {
      if (evicts) pages.birthplace->evict();
      ForkedChild child([&] {
        const bool is_there = std::count(values, values + kElements, 5.0F) == kElements;
        std::fill_n(values, kElements, 6.0F);
        return is_there && std::count(values, values + kElements, 6.0F) == kElements;
      });
      EXPECT_TRUE(child.succeeded());
      EXPECT_EQ(std::count(values, values + kElements, 5.0F), kElements);
      EXPECT_EQ(std::count(pages.place, pages.place + kElements, 5.0F), kElements);
    }
  }
}

}  // namespace
}  // namespace farandole::test
