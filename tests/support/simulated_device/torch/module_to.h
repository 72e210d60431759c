// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/TensorImpl.h>
#include <torch/nn/module.h>

namespace farandole::sim {

/// Moves parameters and buffers, which stay the same tensors. torch::nn::Module::to() cannot:
/// set_data() refuses tensors of a device type that torch does not know.
inline void module_to(torch::nn::Module& module, const torch::Device& device) {
  struct Metadata : c10::TensorImpl {
    static void copy(const c10::TensorImpl& from, c10::TensorImpl& to) {
      copy_tensor_metadata(&from, &to, to.version_counter(), /*allow_metadata_change=*/true);
    }
  };
  const auto move = [&](torch::Tensor& tensor) {
    const torch::Tensor moved = tensor.detach().to(device);
    Metadata::copy(*moved.unsafeGetTensorImpl(), *tensor.unsafeGetTensorImpl());
  };
  for (torch::Tensor& each : module.parameters()) move(each);
  for (torch::Tensor& each : module.buffers()) move(each);
}

}  // namespace farandole::sim
