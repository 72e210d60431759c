// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace farandole {

/// What one rank has of a tensor: some elements, one after the other in the order of the whole
/// tensor's memory. A flat buffer cut into shards is a list of these.
struct TensorSlice {
  std::string key;               ///< as "layer.weight" or "optimizer/layer.weight/exp_avg"
  std::vector<int64_t> shape;    ///< of the whole tensor
  std::vector<int64_t> strides;  ///< of the whole tensor: a permutation of contiguous ones
  int64_t offset = 0;            ///< of the first element
  at::Tensor elements;           ///< of one dimension and contiguous, on any device
};

}  // namespace farandole
