// SPDX-License-Identifier: Apache-2.0
#include "process_group/argument_checks.h"

#include <ATen/MemoryOverlap.h>

#include <sstream>

#include "farandole/error.h"
#include "process_group/device/accelerators.h"

namespace farandole {
namespace {

template <class Value>
std::string text_of(const Value& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string shape_of(const at::Tensor& tensor) {
  return text_of(tensor.scalar_type()) + text_of(tensor.sizes());
}

void check_single(const Caller& caller, const std::vector<at::Tensor>& tensors) {
  if (tensors.size() == 1) return;
  throw InvalidArgument("single-tensor",
                        caller.describe() + " requires a single-element tensor list, got " +
                            std::to_string(tensors.size()) + " tensors.",
                        "a call works on one tensor of this rank.",
                        "call it once for each tensor, or use the coalesced form of the operation "
                        "where there is one.");
}

[[noreturn]] void throw_unserved_device(const Caller& caller, c10::Device device) {
  throw NotSupported(
      "collective-device",
      caller.describe() + " cannot work on a tensor on " + text_of(device) + ".",
      "collectives work on the CPU, on CUDA devices and on those that torch calls PrivateUse1; "
      "sparse tensors and windows on the CPU alone.",
      "move the tensor with .cpu() first.");
}

}  // namespace

std::string Caller::describe() const {
  return std::string(operation) + " in group '" + group + "' on rank " + std::to_string(rank) +
         " of " + std::to_string(world_size);
}

void check_tensor(const Caller& caller, const at::Tensor& tensor) {
  if (!tensor.defined()) {
    throw InvalidArgument("undefined-tensor", caller.describe() + " got an undefined tensor.",
                          "it has no memory to read from or write to.", "pass a defined tensor.");
  }
  if (C10_UNLIKELY(tensor.layout() != at::kStrided)) {
    throw NotSupported(
        "sparse-collective",
        caller.describe() + " cannot work on a tensor of layout " + text_of(tensor.layout()) + ".",
        "collectives work on dense tensors, and sparse tensors of different ranks differ in their "
        "indices.",
        "pass tensor.to_dense().");
  }
  const c10::Device device = tensor.device();
  if (C10_UNLIKELY(!device.is_cpu() && !can_serve(device.type()))) {
    throw_unserved_device(caller, device);
  }
  if (C10_LIKELY(!caller.device || *caller.device == device)) {
    caller.device = device;
    return;
  }
  throw InvalidArgument("mixed-devices",
                        caller.describe() + " got tensors on " + text_of(*caller.device) +
                            " and on " + text_of(device) + ".",
                        "one call works on the memory of one device.",
                        "move the tensors of the call to one device first.");
}

void check_host_tensor(const Caller& caller, const at::Tensor& tensor) {
  check_tensor(caller, tensor);
  if (!tensor.is_cpu()) throw_unserved_device(caller, tensor.device());
}

void check_output(const Caller& caller, const at::Tensor& tensor) {
  check_tensor(caller, tensor);
  if (C10_LIKELY(tensor.is_contiguous())) return;
  if (at::has_internal_overlap(tensor) != at::MemOverlap::Yes) return;
  throw InvalidArgument(
      "overlapping-output",
      caller.describe() + " cannot store into a tensor whose elements overlap (" +
          shape_of(tensor) + ", strides " + text_of(tensor.strides()) + ").",
      "more than one element of the written-to tensor refers to a single memory location, as after "
      "expand().",
      "pass tensor.contiguous().");
}

void check_single_input(const Caller& caller, const std::vector<at::Tensor>& tensors) {
  check_single(caller, tensors);
  check_tensor(caller, tensors.front());
}

void check_single_output(const Caller& caller, const std::vector<at::Tensor>& tensors) {
  check_single(caller, tensors);
  check_output(caller, tensors.front());
}

void check_count_per_rank(const Caller& caller, const char* what,
                          const std::vector<at::Tensor>& tensors) {
  if (tensors.size() != static_cast<size_t>(caller.world_size)) {
    throw InvalidArgument(
        "tensor-list-length",
        caller.describe() + " got " + std::to_string(tensors.size()) + " " + what + " tensors.",
        "the " + std::string(what) +
            " tensor list must have as many tensors as the group has ranks.",
        "pass a list of " + std::to_string(caller.world_size) + " tensors.");
  }
}

void check_one_per_rank(const Caller& caller, const char* what,
                        const std::vector<at::Tensor>& tensors, const at::Tensor& model) {
  check_count_per_rank(caller, what, tensors);
  for (const at::Tensor& tensor : tensors) {
    check_tensor(caller, tensor);
    if (tensor.scalar_type() == model.scalar_type() && tensor.numel() == model.numel()) continue;
    throw InvalidArgument(
        "unequal-tensors",
        caller.describe() + " got the " + std::string(what) + " tensor " + shape_of(tensor) +
            " beside a tensor " + shape_of(model) + ".",
        "all tensors of the call must have the same dtype and number of elements.",
        "pass tensors of equal shape and dtype on every rank.");
  }
}

void check_single_list(const Caller& caller, const std::vector<std::vector<at::Tensor>>& lists) {
  if (lists.size() == 1) return;
  throw InvalidArgument("single-list",
                        caller.describe() + " requires a single list of tensors, got " +
                            std::to_string(lists.size()) + " lists.",
                        "a call works on one tensor of this rank.",
                        "pass one list with a tensor for each rank.");
}

void check_no_list(const Caller& caller, const char* what,
                   const std::vector<std::vector<at::Tensor>>& lists) {
  if (lists.empty() || (lists.size() == 1 && lists.front().empty())) return;
  throw InvalidArgument("list-on-non-root",
                        caller.describe() + " requires empty " + what + " on non-root.",
                        "only the root passes the list of tensors for all ranks.",
                        "leave the list out on every other rank.");
}

void check_lists_of_ranks(const Caller& caller, const std::vector<std::vector<at::Tensor>>& lists,
                          const std::vector<at::Tensor>& inputs) {
  if (inputs.empty() || lists.size() != static_cast<size_t>(caller.world_size)) {
    throw InvalidArgument(
        "output-list-count",
        caller.describe() + " got " + std::to_string(lists.size()) + " output lists for " +
            std::to_string(inputs.size()) + " tensors.",
        "output lists should be equal to world size, and there must be at least one tensor.",
        "pass one list per rank, each with one tensor per input tensor.");
  }
  for (const auto& list : lists) {
    if (list.size() == inputs.size()) continue;
    throw InvalidArgument("unequal-lists",
                          caller.describe() + " got an output list of " +
                              std::to_string(list.size()) + " tensors for " +
                              std::to_string(inputs.size()) + " input tensors.",
                          "every output list must match the input list.",
                          "pass one output tensor per input tensor in each list.");
  }
}

void check_pairs(const Caller& caller, const std::vector<at::Tensor>& outputs,
                 const std::vector<at::Tensor>& inputs) {
  if (!inputs.empty() && outputs.size() == inputs.size()) return;
  throw InvalidArgument("output-tensor-count",
                        caller.describe() + " got " + std::to_string(outputs.size()) +
                            " output tensors for " + std::to_string(inputs.size()) +
                            " input tensors.",
                        "each output belongs to one input, and there must be at least one.",
                        "pass lists of equal length.");
}

void check_equal_parts(const Caller& caller, const at::Tensor& output, const at::Tensor& input) {
  const bool same = output.scalar_type() == input.scalar_type() && output.numel() == input.numel();
  if (same && input.numel() % caller.world_size == 0) return;
  throw InvalidArgument(
      "unequal-parts",
      caller.describe() + " got output " + shape_of(output) + " and input " + shape_of(input) + ".",
      "both must hold one part of equal size for each of the " + std::to_string(caller.world_size) +
          " ranks, in the same dtype.",
      "pass tensors of equal size and dtype, with a size divisible by the world size.");
}

void check_same_dtype(const Caller& caller, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) {
    throw InvalidArgument("empty-list", caller.describe() + " requires non-empty tensor list.",
                          "without a tensor there is nothing to send.",
                          "pass at least one tensor.");
  }
  for (const at::Tensor& tensor : tensors) {
    check_tensor(caller, tensor);
    if (tensor.scalar_type() == tensors.front().scalar_type()) continue;
    throw InvalidArgument("mixed-dtypes",
                          caller.describe() + " got tensors " + shape_of(tensors.front()) +
                              " and " + shape_of(tensor) + " in one list.",
                          "tensors must have identical type: they are sent in one buffer.",
                          "call it once for each dtype.");
  }
}

void check_world_times(const Caller& caller, const char* larger_name, const at::Tensor& larger,
                       const char* smaller_name, const at::Tensor& smaller) {
  const auto got = [&] {
    return std::string(", got ") + larger_name + " " + shape_of(larger) + " and " + smaller_name +
           " " + shape_of(smaller) + ".";
  };
  if (larger.scalar_type() != smaller.scalar_type()) {
    throw InvalidArgument(
        "output-dtype",
        caller.describe() + ": output tensor must have the same type as input tensor" + got(),
        "elements travel as they are; nothing casts them.", "cast one of them first.");
  }
  if (larger.numel() != smaller.numel() * caller.world_size) {
    throw InvalidArgument("size-per-rank",
                          caller.describe() + ": " + larger_name +
                              " tensor size must be equal to world_size times " + smaller_name +
                              " tensor size" + got(),
                          "it must hold one part of equal size for each of the " +
                              std::to_string(caller.world_size) + " ranks.",
                          "make it " + std::to_string(smaller.numel() * caller.world_size) +
                              " elements large, or use the list form of the operation.");
  }
}

void check_root(const Caller& caller, int64_t root, int64_t root_tensor) {
  if (root < 0 || root >= caller.world_size) {
    throw InvalidArgument(
        "invalid-root", caller.describe() + " got invalid root rank: " + std::to_string(root) + ".",
        "ranks of this group are 0 to " + std::to_string(caller.world_size - 1) + ".",
        "pass a rank of the group (group_src or group_dst count within it).");
  }
  if (root_tensor != 0) {
    throw InvalidArgument(
        "invalid-root-tensor",
        caller.describe() + " got invalid root tensor: " + std::to_string(root_tensor) + ".",
        "a call works on one tensor of this rank, which has index 0.", "leave rootTensor at 0.");
  }
}

comm::SharedMemory& shared_memory_of(const Caller& caller, comm::Communicator& communicator) {
  if (comm::SharedMemory* const shared = communicator.shared_memory()) return *shared;
  throw NotSupported("no-shared-memory", caller.describe() + " needs memory that all ranks map.",
                     "the ranks of this group cannot read and write each other's memory.",
                     "call it in a group whose ranks are on one host.");
}

void check_peer(const Caller& caller, int peer) {
  if (peer >= 0 && peer < caller.world_size) return;
  throw InvalidArgument(
      "invalid-peer", caller.describe() + " got invalid peer rank: " + std::to_string(peer) + ".",
      "ranks of this group are 0 to " + std::to_string(caller.world_size - 1) + ".",
      "pass a rank of the group (group_src or group_dst count within it).");
}

void check_no_hints(const Caller& caller,
                    const std::unordered_map<std::string, std::string>& hints) {
  if (hints.empty()) return;
  throw InvalidArgument("unknown-hint",
                        caller.describe() + " got the hint '" + hints.begin()->first + "'.",
                        "this backend has no hints; hints of other backends have no meaning here.",
                        "leave the hints empty.");
}

}  // namespace farandole
