// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/allocation_watch.h"

#include <ATen/ops/_lazy_clone.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <thread>

#include "ddp/allocation/lent_memory.h"

namespace farandole::test {
namespace {

constexpr size_t kLentBytes = 4096;

/// Lends one piece of memory, again and again, for tensors of kLentBytes.
class Lender final : public AllocationWatch {
 public:
  at::DataPtr serve(size_t bytes) override {
    if (bytes != kLentBytes || is_lent) return {};
    is_lent = true;
    return lend_memory(memory.data(), [this] { is_lent = false; });
  }
  void on_served(const void* data, size_t /*bytes*/) override { served = data; }

  bool is_lent = false;
  const void* served = nullptr;
  alignas(64) std::array<std::byte, kLentBytes> memory{};
};

/// A thread whose allocations are watched.
struct Watched {
  std::shared_ptr<Lender> lender = std::make_shared<Lender>();
  Watched() {
    enable_allocation_watch();
    watch_allocations(lender);
  }
  ~Watched() { watch_allocations(nullptr); }
};

at::Tensor tensor_of(size_t bytes) {
  return at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions().dtype(at::kByte));
}

TEST(AllocationWatch, LeavesTorchsAllocatorAloneUntilItIsEnabled) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";  // a process of its own
  EXPECT_EXIT(
      {
        const bool is_torchs = c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator();
        enable_allocation_watch();
        const bool is_ours = c10::GetCPUAllocator() != c10::GetDefaultCPUAllocator();
        ::_exit(is_torchs && is_ours ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(AllocationWatch, ServesTensorsAndTakesTheirMemoryBack) {
  const Watched watched;
  {
    const at::Tensor tensor = tensor_of(kLentBytes);
    EXPECT_EQ(tensor.data_ptr(), watched.lender->memory.data());
    EXPECT_TRUE(owns_lent_memory(tensor.storage().data_ptr()));
    EXPECT_TRUE(watched.lender->is_lent);
    const at::Tensor other = tensor_of(kLentBytes);
    EXPECT_FALSE(owns_lent_memory(other.storage().data_ptr()));
    EXPECT_EQ(other.data_ptr(), watched.lender->served);
  }
  EXPECT_FALSE(watched.lender->is_lent);
}

/// As oneDNN allocates its scratch pads.
TEST(AllocationWatch, ServesRawAllocations) {
  const Watched watched;
  at::Allocator* const allocator = c10::GetCPUAllocator();
  void* const lent = allocator->raw_allocate(kLentBytes);
  EXPECT_EQ(lent, watched.lender->memory.data());
  void* const own = allocator->raw_allocate(kLentBytes);
  EXPECT_EQ(own, watched.lender->served);
  allocator->raw_deallocate(lent);
  EXPECT_FALSE(watched.lender->is_lent);
  allocator->raw_deallocate(own);
}

TEST(AllocationWatch, FreesRawMemoryOfTheAllocatorBefore) {
  void* const before = c10::GetDefaultCPUAllocator()->raw_allocate(kLentBytes);
  const Watched watched;
  c10::GetCPUAllocator()->raw_deallocate(before);
  c10::GetCPUAllocator()->raw_deallocate(nullptr);
  EXPECT_FALSE(watched.lender->is_lent);
}

TEST(AllocationWatch, TakesMemoryBackFromOtherThreads) {
  const Watched watched;
  at::Tensor tensor = tensor_of(kLentBytes);
  std::thread([&] {
    tensor.reset();
    EXPECT_FALSE(owns_lent_memory(tensor_of(kLentBytes).storage().data_ptr()));
  }).join();
  EXPECT_FALSE(watched.lender->is_lent);
}

TEST(AllocationWatch, EndsWithItsThread) {
  std::thread([] {
    enable_allocation_watch();
    watch_allocations(std::make_shared<Lender>());  // and nobody ends it
    EXPECT_FALSE(owns_lent_memory(tensor_of(kLentBytes).storage().data_ptr()));
  }).join();
}

TEST(AllocationWatch, ClonesThatCopyOnWriteShareWhatWasLent) {
  const Watched watched;
  at::Tensor clone;
  {
    at::Tensor tensor = tensor_of(kLentBytes);
    tensor.fill_(7);
    EXPECT_TRUE(owns_lent_memory(tensor.storage().data_ptr()));
    clone = at::_lazy_clone(tensor);
    EXPECT_FALSE(owns_lent_memory(tensor.storage().data_ptr()));
    EXPECT_EQ(clone.const_data_ptr(), watched.lender->memory.data());
  }
  EXPECT_TRUE(watched.lender->is_lent);
  EXPECT_TRUE(at::equal(clone, at::full({kLentBytes}, 7, at::kByte)));
  clone.reset();
  EXPECT_FALSE(watched.lender->is_lent);
}

TEST(AllocationWatch, AForkedChildGivesBackWhatItHas) {
  const Watched watched;
  at::Tensor tensor = tensor_of(kLentBytes);
  const pid_t child = ::fork();
  if (child == 0) {
    tensor.reset();
    ::_exit(watched.lender->is_lent ? 1 : 0);
  }
  int status = -1;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(watched.lender->is_lent);
}

}  // namespace
}  // namespace farandole::test
