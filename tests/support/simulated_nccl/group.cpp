// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/group.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "support/simulated_nccl/handles.h"
#include "support/simulated_nccl/misuse.h"

namespace farandole::sim::nccl {
namespace {

/// The operations of one communicator.
struct Part {
  ncclComm_t handle;
  std::vector<Operation> operations;
};

struct Group {
  int depth = 0;
  ncclResult_t failure = ncclSuccess;
  std::vector<Part> parts;
};
thread_local Group group;

bool overlap(const Access& a, const Access& b) {
  const char* a_begin = static_cast<const char*>(a.data);
  const char* b_begin = static_cast<const char*>(b.data);
  return (a.writes || b.writes) && a_begin < b_begin + b.bytes && b_begin < a_begin + a.bytes;
}

/// Operations of a kernel run at the same time.
void check_disjoint(const std::vector<Operation>& operations, Member member) {
  std::vector<Access> before;
  for (const Operation& operation : operations) {
    const std::vector<Access> accesses = accesses_of(operation, member);
    for (const Access& access : accesses) {
      const auto clashes = [&](const Access& earlier) { return overlap(access, earlier); };
      if (std::none_of(before.begin(), before.end(), clashes)) continue;
      throw Misuse(ncclInvalidUsage,
                   "rank " + std::to_string(member.rank) +
                       " groups operations that touch the same "
                       "memory.\nwhy: one of them is " +
                       describe(operation.signature) +
                       "; operations of a group run at the same time.\nfix: end the group before.");
    }
    before.insert(before.end(), accesses.begin(), accesses.end());
  }
}

ncclResult_t launch(Communicator& communicator, const std::vector<Operation>& operations) {
  communicator.check_usable(name_of(operations.front().signature.function));
  check_disjoint(operations, communicator.identity().member);
  return communicator.begin(nullptr,
                            [&communicator, operations] { communicator.launch(operations); });
}

/// Blocking and other communicators do not go together.
void check_blocking(const std::vector<std::shared_ptr<Communicator>>& communicators) {
  for (const auto& each : communicators) {
    if (each->identity().blocking == communicators.front()->identity().blocking) continue;
    throw Misuse(ncclInvalidArgument,
                 each->name() +
                     " groups blocking and non-blocking communicators.\nwhy: NCCL "
                     "refuses that.\nfix: put them into groups of their own.");
  }
}

}  // namespace

void start_group() { ++group.depth; }

ncclResult_t end_group() {
  if (group.depth == 0) {
    throw Misuse(ncclInvalidUsage,
                 "ncclGroupEnd ends no group.\nwhy: this thread has called ncclGroupStart less "
                 "often.\nfix: pair the calls.");
  }
  if (--group.depth > 0) return ncclSuccess;
  const Group ended = std::exchange(group, {});
  if (ended.failure != ncclSuccess) return ended.failure;
  std::vector<std::shared_ptr<Communicator>> communicators;
  for (const Part& each : ended.parts) {
    communicators.push_back(resolve(each.handle, "ncclGroupEnd"));
  }
  check_blocking(communicators);
  ncclResult_t result = ncclSuccess;
  for (size_t i = 0; i < communicators.size(); ++i) {
    result = launch(*communicators[i], ended.parts[i].operations);
  }
  return result;
}

ncclResult_t submit(ncclComm_t handle, Communicator& communicator, const Operation& operation) {
  if (group.depth == 0) return launch(communicator, {operation});
  const auto is_part = [&](const Part& part) { return part.handle == handle; };
  auto part = std::find_if(group.parts.begin(), group.parts.end(), is_part);
  if (part == group.parts.end()) part = group.parts.insert(part, Part{handle, {}});
  part->operations.push_back(operation);
  return ncclSuccess;
}

ncclResult_t note_in_group(ncclResult_t result) {
  if (group.depth > 0 && group.failure == ncclSuccess && result != ncclInProgress) {
    group.failure = result;
  }
  return result;
}

void check_outside_group(const char* function) {
  if (group.depth == 0) return;
  throw Misuse(ncclInvalidUsage, std::string(function) +
                                     " is called in a group.\nwhy: only operations may be grouped "
                                     "here.\nfix: end the group before.");
}

}  // namespace farandole::sim::nccl
