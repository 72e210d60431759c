// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace farandole::checkpoint {

/// A tensor of one dimension on the CPU, not initialized; in huge pages if it is large, since new
/// memory is otherwise as slow to get, page by page, as to read from a disk.
at::Tensor new_memory(int64_t elements, at::ScalarType dtype);

}  // namespace farandole::checkpoint
