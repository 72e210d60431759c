// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/aliased_slot.h"

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

/// Pages that two processes could share, with a slot that begins within one of them.
struct Pages {
  static constexpr size_t kAll = 1 << 16;
  std::shared_ptr<void> memory{
      ::mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
      [](void* data) { ::munmap(data, kAll); }};
  float* slot = static_cast<float*>(memory.get()) + 16;
  std::shared_ptr<AliasedSlot> aliased_slot = AliasedSlot::of(slot, kBytes, memory);
};

/// A tensor in lent memory.
at::Tensor tensor_in(at::DataPtr data) {
  const at::Storage storage(c10::Storage::use_byte_size_t(), kBytes, std::move(data));
  return at::empty({0}).set_(storage, 0, {kElements}, {1});
}

TEST(AliasedSlot, WhatIsComputedInItLiesInThePlace) {
  const Pages pages;
  pages.aliased_slot->open();
  at::Tensor tensor = tensor_in(pages.aliased_slot->lend());
  EXPECT_TRUE(pages.aliased_slot->holds(tensor));
  tensor.fill_(3);
  EXPECT_EQ(pages.slot[0], 3);
  EXPECT_EQ(pages.slot[kElements - 1], 3);
  EXPECT_EQ(pages.slot[-1], 0);
  EXPECT_EQ(pages.slot[kElements], 0);
}

TEST(AliasedSlot, IsLentOnceAndOnlyWhenOpen) {
  const Pages pages;
  EXPECT_FALSE(pages.aliased_slot->lend());
  pages.aliased_slot->open();
  {
    const at::DataPtr lent = pages.aliased_slot->lend();
    EXPECT_TRUE(lent);
    EXPECT_FALSE(pages.aliased_slot->lend());
  }
  EXPECT_FALSE(pages.aliased_slot->lend());  // what was born there stays
  pages.aliased_slot->open();
  pages.aliased_slot->evict();
  EXPECT_FALSE(pages.aliased_slot->lend());
  pages.aliased_slot->open();
  EXPECT_TRUE(pages.aliased_slot->lend());
}

TEST(AliasedSlot, AnEvictedTensorKeepsItsContents) {
  const Pages pages;
  pages.aliased_slot->open();
  const at::Tensor tensor = tensor_in(pages.aliased_slot->lend());
  auto* const values = tensor.mutable_data_ptr<float>();
  std::iota(values, values + kElements, 1.0F);
  pages.aliased_slot->evict();
  EXPECT_FALSE(pages.aliased_slot->holds(tensor));
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(pages.slot[i], static_cast<float>(i + 1));
  std::fill_n(pages.slot, kElements, -1.0F);  // as peers do
  for (int64_t i = 0; i < kElements; ++i) ASSERT_EQ(values[i], static_cast<float>(i + 1));
  values[0] = 7;
  EXPECT_EQ(pages.slot[0], -1);
}

TEST(AliasedSlot, IsThePlaceAgainWhenTheEvictedTensorIsGone) {
  const Pages pages;
  for (int round = 0; round < 3; ++round) {
    pages.aliased_slot->open();
    const at::Tensor tensor = tensor_in(pages.aliased_slot->lend());
    tensor.fill_(round);
    pages.aliased_slot->evict();
    pages.aliased_slot->open();
    EXPECT_FALSE(pages.aliased_slot->lend()) << "while a tensor has those addresses";
  }
  pages.aliased_slot->open();
  tensor_in(pages.aliased_slot->lend()).fill_(5);
  EXPECT_EQ(pages.slot[kElements / 2], 5);
}

TEST(AliasedSlot, IsNoPlaceForTensorsThatAreKept) {
  const Pages pages;
  int lent = 0;
  for (int round = 0; round < 100; ++round) {
    pages.aliased_slot->open();
    at::DataPtr data = pages.aliased_slot->lend();
    if (data) ++lent;
    pages.aliased_slot->evict();
  }
  EXPECT_GT(lent, 1);
  EXPECT_LT(lent, 10);
}

TEST(AliasedSlot, LivesAsLongAsATensorInIt) {
  auto pages = std::make_unique<Pages>();
  pages->aliased_slot->open();
  const at::Tensor tensor = tensor_in(pages->aliased_slot->lend());
  tensor.fill_(2);
  pages.reset();
  EXPECT_EQ(tensor.sum().item<float>(), 2.0F * kElements);
}

TEST(AliasedSlot, RefusesPlacesThatTensorsMayNotBeginAt) {
  const Pages pages;
  EXPECT_EQ(AliasedSlot::of(pages.slot + 1, kBytes, pages.memory), nullptr);
  EXPECT_EQ(AliasedSlot::of(pages.slot, 0, pages.memory), nullptr);
}

TEST(AliasedSlot, AForkedChildMayLetGo) {
  Pages pages;
  pages.aliased_slot->open();
  at::Tensor tensor = tensor_in(pages.aliased_slot->lend());
  tensor.fill_(4);
  const pid_t child = ::fork();
  if (child == 0) {
    tensor.reset();
    const bool lends = static_cast<bool>(pages.aliased_slot->lend());
    pages.aliased_slot.reset();
    ::_exit(lends ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(tensor.sum().item<float>(), 4.0F * kElements);
  EXPECT_EQ(pages.slot[0], 4);
}

/// Before and after it was evicted, and when the slot is lent again.
TEST(AliasedSlot, AForkedChildHasATensorThereForItself) {
  const Pages pages;
  for (int round = 0; round < 3; ++round) {
    pages.aliased_slot->open();
    const at::Tensor tensor = tensor_in(pages.aliased_slot->lend());
    auto* const values = tensor.mutable_data_ptr<float>();
    std::fill_n(values, kElements, 5.0F);
    for (const bool evicts : {false, true}) {
      if (evicts) pages.aliased_slot->evict();
      ForkedChild child([&] {
        const bool is_there = std::count(values, values + kElements, 5.0F) == kElements;
        std::fill_n(values, kElements, 6.0F);
        return is_there && std::count(values, values + kElements, 6.0F) == kElements;
      });
      EXPECT_TRUE(child.succeeded());
      EXPECT_EQ(std::count(values, values + kElements, 5.0F), kElements);
      EXPECT_EQ(std::count(pages.slot, pages.slot + kElements, 5.0F), kElements);
    }
  }
}

}  // namespace
}  // namespace farandole::test
