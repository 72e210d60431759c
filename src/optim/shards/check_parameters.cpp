// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/check_parameters.h"

#include <ATen/MemoryOverlap.h>

#include <algorithm>
#include <string_view>

#include "farandole/error.h"

namespace farandole {

void check_parameter(const at::Tensor& parameter, const std::string& name) {
  if (!parameter.is_leaf()) {
    throw InvalidArgument(
        "not-a-leaf", "'" + name + "' is not a parameter: it was computed.",
        "an optimizer updates leaves of the autograd graph; only leaves get gradients.",
        "pass model.parameters().");
  }
  if (parameter.is_meta()) {
    throw InvalidArgument("meta-parameter", "parameter '" + name + "' is on the meta device.",
                          "it has a shape and no values, so there is nothing to step.",
                          "give the module memory first, with module.to_empty() or "
                          "load_state_dict(assign=True).");
  }
  if (parameter.layout() == at::kStrided &&
      (parameter.is_floating_point() || parameter.is_complex())) {
    return;
  }
  throw InvalidArgument("parameter-dtype",
                        "parameter '" + name + "' is of dtype " +
                            std::string(c10::toString(parameter.scalar_type())) +
                            (parameter.layout() == at::kStrided ? "." : " and sparse."),
                        "a sharded optimizer steps dense floating-point and complex tensors.",
                        "leave the parameter out of this optimizer.");
}

void check_one_device(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (parameter.device() == parameters.front().device()) continue;
    throw InvalidArgument("several-devices",
                          "a sharded optimizer got parameters on " +
                              parameters.front().device().str() + " and on " +
                              parameter.device().str() + ".",
                          "the shards of a rank are parts of one buffer on one device.",
                          "make one optimizer for the parameters of each device.");
  }
}

void check_apart(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names) {
  struct Range {
    uintptr_t begin;
    uintptr_t end;
    size_t parameter;
  };
  std::vector<Range> ranges;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i];
    if (tensor.numel() == 0 || tensor.const_data_ptr() == nullptr) continue;
    if (at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      throw InvalidArgument(
          "self-overlapping-parameter", "elements of parameter '" + names[i] + "' share memory.",
          "each element would be stepped on its own, and they would no longer be equal.",
          "make the parameter without expand(), and call expand() in forward.");
    }
    int64_t last = 0;
    for (int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    const auto begin = reinterpret_cast<uintptr_t>(tensor.const_data_ptr());
    ranges.push_back({begin, begin + static_cast<size_t>(last + 1) * tensor.element_size(), i});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  size_t widest = 0;
  for (size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin < ranges[widest].end) {
      throw InvalidArgument(
          "parameters-share-memory",
          "parameters '" + names[ranges[widest].parameter] + "' and '" +
              names[ranges[i].parameter] + "' share memory.",
          "each gets its own slot in the shards, and they would no longer share memory.",
          "tie modules with one Parameter object, or make one of them a view of the other in "
          "forward.");
    }
    if (ranges[i].end > ranges[widest].end) widest = i;
  }
}

comm::Fingerprint fingerprint_of_values(const at::Tensor& parameter) {
  const at::Tensor own = parameter.detach().cpu();
  const at::Tensor dense = own.is_non_overlapping_and_dense() ? own : own.contiguous();
  return comm::fingerprint_of({static_cast<const char*>(dense.const_data_ptr()), dense.nbytes()});
}

void throw_that_parameters_differ(int rank, const ReplicaGroup& group) {
  throw InvalidArgument(
      "different-parameters",
      "the parameters of ranks 0 and " + std::to_string(rank) + " in group '" + group.name() +
          "' differ.",
      "each rank steps its shards for all ranks; parameters must have the same shapes, dtypes, "
      "types of device, groups and requires_grad on every rank, and the same values at the first "
      "step.",
      "wrap the model in DistributedDataParallel first, which makes them equal, or broadcast "
      "them.");
}

}  // namespace farandole
