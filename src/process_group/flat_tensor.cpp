// SPDX-License-Identifier: Apache-2.0
#include "process_group/flat_tensor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "process_group/data_type.h"

namespace farandole {
namespace {

/// The tensors as one flat view of the storage that they share, or an undefined tensor.
at::Tensor shared_memory_of(const std::vector<at::Tensor>& tensors) {
  const at::Tensor& first = tensors.front();
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) {
    if (!is_flat(tensor) || !tensor.storage().is_alias_of(first.storage()) ||
        tensor.storage_offset() != first.storage_offset() + total) {
      return {};
    }
    total += tensor.numel();
  }
  return first.as_strided({total}, {1});
}

/// Whether its elements are one run of this process's memory: memcpy() then takes less than a call
/// of copy_(), which costs more than the elements of a small tensor.
bool is_run(const at::Tensor& tensor) { return tensor.is_cpu() && is_flat(tensor); }

int64_t total_elements(const std::vector<at::Tensor>& tensors) {
  int64_t total = 0;
  for (const at::Tensor& tensor : tensors) total += tensor.numel();
  return total;
}

}  // namespace

Wire wire_of(const at::Tensor& tensor) {
  const auto count = static_cast<size_t>(tensor.numel());
  if (const auto dtype = data_type_of(tensor.scalar_type())) return {*dtype, count};
  return {comm::DataType::kUInt8, count * tensor.element_size()};
}

bool is_flat(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor flat_output(const at::Tensor& tensor) {
  if (is_flat(tensor)) return tensor;
  return at::empty(tensor.sizes(), tensor.options().memory_format(at::MemoryFormat::Contiguous));
}

at::Tensor flat_input(const at::Tensor& tensor) {
  at::Tensor flat = flat_output(tensor);
  if (!flat.is_same(tensor)) flat.copy_(tensor);
  return flat;
}

void store_flat(const at::Tensor& flat, const at::Tensor& tensor) {
  if (!flat.is_same(tensor)) tensor.copy_(flat);
}

at::Tensor joined_output(const std::vector<at::Tensor>& tensors) {
  at::Tensor joined = shared_memory_of(tensors);
  if (joined.defined()) return joined;
  return at::empty({total_elements(tensors)}, tensors.front().options());
}

at::Tensor joined_input(const std::vector<at::Tensor>& tensors) {
  at::Tensor joined = joined_output(tensors);
  if (joined.storage().is_alias_of(tensors.front().storage())) return joined;
  auto* const begin = static_cast<std::byte*>(joined.mutable_data_ptr());
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;  // it may have no memory
    if (is_run(tensor)) {
      std::memcpy(begin + offset * tensor.element_size(), tensor.const_data_ptr(), tensor.nbytes());
    } else {
      joined.narrow(0, offset, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    }
    offset += tensor.numel();
  }
  return joined;
}

void store_joined(const at::Tensor& joined, const std::vector<at::Tensor>& tensors) {
  if (joined.storage().is_alias_of(tensors.front().storage())) return;
  const auto* const begin = static_cast<const std::byte*>(joined.const_data_ptr());
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    if (tensor.numel() == 0) continue;
    if (is_run(tensor)) {
      std::memcpy(tensor.mutable_data_ptr(), begin + offset * tensor.element_size(),
                  tensor.nbytes());
      if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();  // as copy_() does
    } else {
      tensor.copy_(joined.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    }
    offset += tensor.numel();
  }
}

at::Tensor apart_from(const at::Tensor& input, const at::Tensor& output, size_t in_place_offset) {
  const auto input_begin = reinterpret_cast<uintptr_t>(input.const_data_ptr());
  const auto output_begin = reinterpret_cast<uintptr_t>(output.const_data_ptr());
  if (input_begin + input.nbytes() <= output_begin ||
      output_begin + output.nbytes() <= input_begin) {
    return input;
  }
  if (in_place_offset == kNeverInPlace) return input.clone();
  const bool input_is_larger = input.numel() > output.numel();
  const uintptr_t larger_begin = input_is_larger ? input_begin : output_begin;
  const uintptr_t smaller_begin = input_is_larger ? output_begin : input_begin;
  const bool in_place = smaller_begin == larger_begin + in_place_offset * input.element_size();
  return in_place ? input : input.clone();
}

}  // namespace farandole
