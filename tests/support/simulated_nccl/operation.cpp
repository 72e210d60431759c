// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/operation.h"

#include "support/simulated_nccl/misuse.h"
#include "support/simulated_nccl/reduction.h"

namespace farandole::sim::nccl {
namespace {

/// What each rank's buffers hold, in bytes; 0 for buffers that the rank does not use.
struct Sizes {
  size_t send;
  size_t receive;
};

Sizes sizes_of(const Operation& operation, Member member) {
  const Signature& signature = operation.signature;
  const size_t bytes = signature.count * size_of(signature.dtype);
  const size_t all = bytes * static_cast<size_t>(member.world_size);
  const bool is_root = member.rank == signature.root;
  switch (signature.function) {
    case Function::kAllReduce:
      return {bytes, bytes};
    case Function::kReduce:
      return {bytes, is_root ? bytes : 0};
    case Function::kReduceScatter:
      return {all, bytes};
    case Function::kAllGather:
      return {bytes, all};
    case Function::kBroadcast:
      return {is_root ? bytes : 0, bytes};
    case Function::kSend:
      return {bytes, 0};
    case Function::kReceive:
      return {0, bytes};
  }
  return {0, 0};
}

const char* name_of_op(int32_t op) {
  static constexpr const char* kNames[] = {"ncclSum", "ncclProd", "ncclMax", "ncclMin", "ncclAvg"};
  return op < ncclNumOps ? kNames[op] : "a premultiplied sum";
}

}  // namespace

const char* name_of(Function function) {
  static constexpr const char* kNames[] = {"ncclAllReduce", "ncclReduce",    "ncclReduceScatter",
                                           "ncclAllGather", "ncclBroadcast", "ncclSend",
                                           "ncclRecv"};
  return kNames[static_cast<int32_t>(function)];
}

bool is_point_to_point(Function function) {
  return function == Function::kSend || function == Function::kReceive;
}

bool agree(const Signature& a, const Signature& b) {
  const bool same_function =
      is_point_to_point(a.function) ? is_point_to_point(b.function) : a.function == b.function;
  return same_function && a.dtype == b.dtype && a.op == b.op && a.root == b.root &&
         a.count == b.count;
}

std::string describe(const Signature& signature) {
  std::string text = name_of(signature.function) + std::string(" of ") +
                     std::to_string(signature.count) + " " + name_of(signature.dtype);
  if (signature.op >= 0) text += std::string(" with ") + name_of_op(signature.op);
  if (signature.root >= 0) text += " and root " + std::to_string(signature.root);
  return text + ", its call " + std::to_string(signature.call);
}

std::vector<Access> accesses_of(const Operation& operation, Member member) {
  const Sizes sizes = sizes_of(operation, member);
  std::vector<Access> accesses;
  if (sizes.receive > 0) accesses.push_back({operation.receive, sizes.receive, true});
  if (sizes.send > 0) accesses.push_back({operation.send, sizes.send, false});
  if (operation.factor && operation.factor->on_device != nullptr) {
    accesses.push_back({operation.factor->on_device, size_of(operation.signature.dtype), false});
  }
  return accesses;
}

void check_overlap(const Operation& operation, Member member) {
  const Sizes sizes = sizes_of(operation, member);
  if (sizes.send == 0 || sizes.receive == 0) return;
  const char* send = operation.send;
  const char* receive = operation.receive;
  const size_t rank = static_cast<size_t>(member.rank);
  if (operation.signature.function == Function::kReduceScatter) send += rank * sizes.receive;
  if (operation.signature.function == Function::kAllGather) receive += rank * sizes.send;
  const bool overlaps = operation.send < operation.receive + sizes.receive &&
                        operation.receive < operation.send + sizes.send;
  if (!overlaps || send == receive) return;
  throw Misuse(ncclInvalidArgument,
               "rank " + std::to_string(member.rank) + " gives overlapping buffers to " +
                   describe(operation.signature) +
                   ".\nwhy: they are not at the positions of an operation in place.\nfix: use the "
                   "positions that nccl.h documents, or buffers that do not overlap.");
}

}  // namespace farandole::sim::nccl
