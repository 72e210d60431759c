// SPDX-License-Identifier: Apache-2.0
#include "optim/state/shard_state.h"

#include <ATen/ops/zeros.h>

namespace farandole {

at::ScalarType state_dtype_of(at::ScalarType dtype) {
  return c10::isReducedFloatingType(dtype) ? at::kFloat : dtype;
}

bool ShardState::make(const std::string& name, size_t bucket) {
  auto& arrays = arrays_[name];
  arrays.resize(plan_.buckets.buckets.size());
  if (arrays[bucket].defined()) return false;
  const auto& planned = plan_.buckets.buckets[bucket];
  arrays[bucket] =
      at::zeros({plan_.shard_elements(bucket, rank_)},
                at::TensorOptions(planned.device).dtype(state_dtype_of(planned.dtype)));
  return true;
}

at::Tensor ShardState::array(const std::string& name, size_t bucket) const {
  const auto found = arrays_.find(name);
  return found == arrays_.end() ? at::Tensor() : found->second[bucket];
}

at::Tensor ShardState::piece(const std::string& name, const ShardPiece& piece) const {
  const at::Tensor whole = array(name, piece.bucket);
  return whole.defined() ? whole.narrow(0, piece.shard_offset, piece.elements) : at::Tensor();
}

void* ShardState::address(const std::string& name, const ShardPiece& piece) const {
  const at::Tensor& whole = arrays_.at(name)[piece.bucket];
  return static_cast<std::byte*>(whole.mutable_data_ptr()) +
         piece.shard_offset * static_cast<int64_t>(whole.element_size());
}

std::vector<std::string> ShardState::names(size_t bucket) const {
  std::vector<std::string> names;
  for (const auto& [name, arrays] : arrays_) {
    if (arrays[bucket].defined()) names.push_back(name);
  }
  return names;
}

int64_t ShardState::bytes() const {
  int64_t bytes = 0;
  for (const auto& [name, arrays] : arrays_) {
    for (const at::Tensor& array : arrays) {
      if (array.defined()) bytes += static_cast<int64_t>(array.nbytes());
    }
  }
  return bytes;
}

}  // namespace farandole
