// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <unordered_map>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/export.h"

namespace farandole {

/// Who calls what, for messages. Cheap to make: the text is put together when something is wrong.
struct Caller {
  const char* operation;  ///< "all_reduce"
  const std::string& group;
  int rank;
  int world_size;
  /// Of the tensors that were checked so far; the checks set it.
  mutable std::optional<c10::Device> device = std::nullopt;

  /// "all_reduce in group 'default' on rank 1 of 4"
  std::string describe() const;
};

// Each check throws before anything is sent: InvalidArgument for misuse, NotSupported for what this
// version cannot do.

/// A dense tensor on the CPU or an accelerator that groups of this build serve, and on the device
/// of those that were checked for `caller` before.
void check_tensor(const Caller& caller, const at::Tensor& tensor);
/// check_tensor(), and in host memory.
void check_host_tensor(const Caller& caller, const at::Tensor& tensor);
/// check_tensor(), and no two elements share memory (as in an expanded tensor).
void check_output(const Caller& caller, const at::Tensor& tensor);
/// Exactly one tensor, and check_tensor() or check_output().
void check_single_input(const Caller& caller, const std::vector<at::Tensor>& tensors);
void check_single_output(const Caller& caller, const std::vector<at::Tensor>& tensors);
/// One tensor per rank. `what`: "output".
void check_count_per_rank(const Caller& caller, const char* what,
                          const std::vector<at::Tensor>& tensors);
/// One tensor per rank, each of the dtype and number of elements of `model`. `what`: "output".
void check_one_per_rank(const Caller& caller, const char* what,
                        const std::vector<at::Tensor>& tensors, const at::Tensor& model);
/// Exactly one list.
void check_single_list(const Caller& caller, const std::vector<std::vector<at::Tensor>>& lists);
/// No list, or an empty one: only the root passes tensors. `what`: "output".
void check_no_list(const Caller& caller, const char* what,
                   const std::vector<std::vector<at::Tensor>>& lists);
/// One list per rank, each as long as `inputs`.
void check_lists_of_ranks(const Caller& caller, const std::vector<std::vector<at::Tensor>>& lists,
                          const std::vector<at::Tensor>& inputs);
/// As many outputs as inputs, at least one.
void check_pairs(const Caller& caller, const std::vector<at::Tensor>& outputs,
                 const std::vector<at::Tensor>& inputs);
/// One dtype, one size, and one equal part for each rank.
void check_equal_parts(const Caller& caller, const at::Tensor& output, const at::Tensor& input);
/// At least one tensor, all of one dtype.
void check_same_dtype(const Caller& caller, const std::vector<at::Tensor>& tensors);
/// The larger of two tensors is world_size times the smaller, and both have one dtype.
void check_world_times(const Caller& caller, const char* larger_name, const at::Tensor& larger,
                       const char* smaller_name, const at::Tensor& smaller);
/// 0 <= root < world size, and root_tensor == 0.
void check_root(const Caller& caller, int64_t root, int64_t root_tensor = 0);

/// No hint at all: this backend knows none, and leaving one out in silence could hide a mistake.
void check_no_hints(const Caller& caller,
                    const std::unordered_map<std::string, std::string>& hints);

/// What the ranks share, if each maps the memory of the others; else NotSupported.
FARANDOLE_API comm::SharedMemory& shared_memory_of(const Caller& caller,
                                                   comm::Communicator& communicator);

/// 0 <= peer < world size.
void check_peer(const Caller& caller, int peer);

}  // namespace farandole
