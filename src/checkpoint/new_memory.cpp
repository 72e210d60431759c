// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/new_memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

namespace farandole::checkpoint {

at::Tensor new_memory(int64_t elements, at::ScalarType dtype) {
  constexpr size_t kHugePage = size_t{2} << 20;
  const size_t bytes = static_cast<size_t>(elements) * c10::elementSize(dtype);
  if (bytes < 2 * kHugePage) return at::empty({elements}, dtype);
  const size_t mapped = (bytes + kHugePage - 1) / kHugePage * kHugePage;
  void* const memory =
      ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return at::empty({elements}, dtype);  // which says what is wrong
  ::madvise(memory, mapped, MADV_HUGEPAGE);
  return at::from_blob(
      memory, {elements}, [mapped](void* own) { ::munmap(own, mapped); }, dtype);
}

}  // namespace farandole::checkpoint
