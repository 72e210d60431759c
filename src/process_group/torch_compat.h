// SPDX-License-Identifier: Apache-2.0
#pragma once

// Where torch versions differ. Newer virtual functions of c10d::Backend are behind its own macros
// (C10D_BACKEND_HAS_...) where we override them; all else is here.

#include <string>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <vector>

namespace farandole {

/// The group that c10d knows by `name`, or the empty pointer. torch 2.11 can only be asked by
/// trying.
inline c10::intrusive_ptr<c10d::ProcessGroup> registered_group(const std::string& name) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  if (!c10d::is_process_group_registered(name)) return {};
#endif
  try {
    return c10d::resolve_process_group(name);
  } catch (const c10::Error&) {
    return {};
  }
}

// Collectives that torch 2.15 has by new names and whose old ones it calls deprecated.

using TorchWork = c10::intrusive_ptr<c10d::Work>;

inline TorchWork all_gather_single(c10d::ProcessGroup& group, at::Tensor output, at::Tensor input,
                                   const c10d::AllgatherOptions& opts) {
#ifdef C10D_BACKEND_HAS_HOOKS
  return group.all_gather_single(output, input, opts);
#else
  return group._allgather_base(output, input, opts);
#endif
}

inline TorchWork reduce_scatter_single(c10d::ProcessGroup& group, at::Tensor output,
                                       at::Tensor input, const c10d::ReduceScatterOptions& opts) {
#ifdef C10D_BACKEND_HAS_HOOKS
  return group.reduce_scatter_single(output, input, opts);
#else
  return group._reduce_scatter_base(output, input, opts);
#endif
}

inline TorchWork all_to_all_single(c10d::ProcessGroup& group, at::Tensor output, at::Tensor input,
                                   std::vector<int64_t> output_splits,
                                   std::vector<int64_t> input_splits,
                                   const c10d::AllToAllOptions& opts) {
#ifdef C10D_BACKEND_HAS_HOOKS
  return group.all_to_all_single(output, input, output_splits, input_splits, opts);
#else
  return group.alltoall_base(output, input, output_splits, input_splits, opts);
#endif
}

}  // namespace farandole
