// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/new_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <atomic>
#include <chrono>

namespace farandole::checkpoint {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kHugePage = size_t{2} << 20;

/// Gets the first huge page. To clear one takes 0.3 ms, and as many small ones 1.2 ms; where the
/// kernel has to make room, or a hypervisor has taken free ones back, 3 to 20 ms.
bool is_first_page_quick(void* memory) {
  const auto begin = Clock::now();
  *static_cast<volatile char*>(memory) = 0;
  return Clock::now() - begin < std::chrono::milliseconds(1);
}

/// Large pages if they are quick to get; if not, all memory has small ones for a second.
void want_huge_pages(void* memory, size_t bytes) {
  static std::atomic<Clock::rep> small_until{0};
  if (Clock::now().time_since_epoch().count() < small_until) return;
  ::madvise(memory, bytes, MADV_HUGEPAGE);
  if (is_first_page_quick(memory)) return;
  ::madvise(memory, bytes, MADV_NOHUGEPAGE);
  small_until = (Clock::now() + std::chrono::seconds(1)).time_since_epoch().count();
}

}  // namespace

at::Tensor new_memory(int64_t elements, at::ScalarType dtype) {
  const size_t bytes = static_cast<size_t>(elements) * c10::elementSize(dtype);
  if (bytes < 2 * kHugePage) return at::empty({elements}, dtype);
  const size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return at::empty({elements}, dtype);  // which says what is wrong
  want_huge_pages(memory, mapped);
  return at::from_blob(
      memory, {elements}, [mapped](void* own) { ::munmap(own, mapped); }, dtype);
}

}  // namespace farandole::checkpoint
