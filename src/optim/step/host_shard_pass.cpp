// SPDX-License-Identifier: Apache-2.0
#include "optim/step/host_shard_pass.h"

#include <ATen/ops/scalar_tensor.h>

namespace farandole {

void HostShardPass::collect(const std::vector<at::Tensor>& to) {
  std::vector<void*> addresses;
  for (const at::Tensor& each : to) addresses.push_back(each.mutable_data_ptr());
  pass_.collect(pieces_.complete(), addresses);
}

at::Tensor HostShardPass::norm_term_of_gradients(double power) {
  return at::scalar_tensor(pass_.norm_term_of_gradients(pieces_.complete(), power), at::kDouble);
}

}  // namespace farandole
