// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

namespace farandole {

/// Keeps the memory of `tensor`, which may have been allocated for another stream, until what the
/// current stream of its device was given by the time of its release is over. Nothing on the CPU.
void keep_for_current_stream(const at::Tensor& tensor);

}  // namespace farandole
