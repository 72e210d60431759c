// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "farandole/checkpoint/tensor_slice.h"
#include "farandole/export.h"

namespace farandole {

/// What one rank writes of tensors that all ranks have, that one has, or that are cut into shards.
/// Errors: InvalidArgument. Threads: one at a time.
class FARANDOLE_API SliceList {
 public:
  SliceList(int rank, int world_size) : rank_(rank), world_size_(world_size) {}

  int rank() const { return rank_; }
  /// Of a tensor that is the same on all ranks, which all of them add: each writes a part.
  void add_shared(const std::string& key, const at::Tensor& tensor);
  /// A whole tensor that this rank alone writes.
  void add_own(const std::string& key, const at::Tensor& tensor);
  /// Elements from `offset` on of what has the shape of `parameter`, in the order of its memory.
  void add_part(const std::string& key, const at::Tensor& parameter, int64_t offset,
                const at::Tensor& elements);
  /// A key that no shared tensor has, the same on all ranks.
  std::string new_key(const std::string& wanted);

  const std::vector<TensorSlice>& own() const { return own_; }
  /// A text of what all ranks must have alike but for values.
  const std::string& common() const { return common_; }

 private:
  const int rank_;
  const int world_size_;
  int next_ = 0;  ///< who writes the next small tensor that all have
  std::vector<TensorSlice> own_;
  std::set<std::string> keys_;  ///< of all ranks
  std::string common_;
};

/// Throws InvalidArgument unless a tensor has elements, all of them and here.
FARANDOLE_API void check_tensor(const std::string& key, const at::Tensor& tensor);

/// Throws InvalidArgument if elements share memory.
FARANDOLE_API void check_apart(const std::string& key, const at::Tensor& tensor);

/// The strides in which a checkpoint has a tensor: its own if it has no gaps.
std::vector<int64_t> saved_strides(const at::Tensor& tensor);

}  // namespace farandole
