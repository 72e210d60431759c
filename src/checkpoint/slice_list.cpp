// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/slice_list.h"

#include "farandole/error.h"

namespace farandole {
namespace {

constexpr int64_t kCutFrom = 1 << 16;  // elements from which on all ranks write a shared tensor

bool is_dense(const at::Tensor& tensor) { return tensor.is_non_overlapping_and_dense(); }

/// The elements in the order of memory, without a copy if they lie close.
at::Tensor flat(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  const at::Tensor dense = is_dense(plain) ? plain : plain.contiguous();
  return dense.as_strided({dense.numel()}, {1});
}

std::string text_of(at::IntArrayRef numbers) {
  std::string text;
  for (const int64_t number : numbers) text += std::to_string(number) + ",";
  return text;
}

}  // namespace

void check_tensor(const std::string& key, const at::Tensor& tensor) {
  std::string kind;
  std::string fix;
  if (tensor.is_meta()) {
    kind = "is on the meta device";
    fix = "move it to memory first: to_empty(device=...).";
  } else if (tensor.layout() != at::kStrided) {
    kind = "is sparse";
    fix = "make it dense first: to_dense().";
  } else if (tensor.is_quantized()) {
    kind = "is quantized";
    fix = "save what int_repr() and the scales are.";
  } else {
    return;
  }
  throw InvalidArgument(
      "checkpoint-tensor", "a checkpoint got '" + key + "', which " + kind + ".",
      "a checkpoint takes tensors whose elements are all in the memory of their rank.", fix);
}

void check_apart(const std::string& key, const at::Tensor& tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) != 0 || tensor.size(dim) <= 1) continue;
    throw InvalidArgument("checkpoint-overlapping",
                          "the checkpoint got '" + key + "', elements of which share memory.",
                          "it was made by expand(); nothing could be loaded into it.",
                          "clone() it where the module registers it.");
  }
}

std::vector<int64_t> saved_strides(const at::Tensor& tensor) {
  const at::Tensor plain = tensor.detach().resolve_conj().resolve_neg();
  return (is_dense(plain) ? plain : plain.contiguous()).strides().vec();
}

void SliceList::add_shared(const std::string& key, const at::Tensor& tensor) {
  check_tensor(key, tensor);
  const at::Tensor elements = flat(tensor);
  const std::vector<int64_t> strides = saved_strides(tensor);
  if (!keys_.insert(key).second) {
    throw InvalidArgument(
        "checkpoint-key-twice", "the checkpoint got two tensors with the name '" + key + "'.",
        "tensors of named models are saved as 'name.tensor', those of optimizers as 'name:tensor'.",
        "give the models other names.");
  }
  common_ += key + " " + text_of(tensor.sizes()) + " " + text_of(strides) + " " +
             std::string(c10::toString(tensor.scalar_type())) + "\n";
  int64_t begin = 0;
  int64_t end = elements.numel();
  if (end < kCutFrom) {
    const bool is_mine = next_ == rank_;
    next_ = (next_ + 1) % world_size_;
    if (!is_mine) return;
  } else {
    begin = elements.numel() * rank_ / world_size_;
    end = elements.numel() * (rank_ + 1) / world_size_;
  }
  own_.push_back(
      {key, tensor.sizes().vec(), strides, begin, elements.narrow(0, begin, end - begin)});
}

void SliceList::add_own(const std::string& key, const at::Tensor& tensor) {
  check_tensor(key, tensor);
  own_.push_back({key, tensor.sizes().vec(), saved_strides(tensor), 0, flat(tensor)});
}

void SliceList::add_part(const std::string& key, const at::Tensor& parameter, int64_t offset,
                         const at::Tensor& elements) {
  own_.push_back(
      {key, parameter.sizes().vec(), saved_strides(parameter), offset, elements.detach()});
}

std::string SliceList::new_key(const std::string& wanted) {
  std::string key = wanted;
  for (int number = 2; !keys_.insert(key).second; ++number) {
    key = wanted + "#" + std::to_string(number);
  }
  return key;
}

}  // namespace farandole
