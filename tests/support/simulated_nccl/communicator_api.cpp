// SPDX-License-Identifier: Apache-2.0
// How communicators of nccl.h are made, asked and ended.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_nccl/api.h"
#include "support/simulated_nccl/group.h"
#include "support/simulated_nccl/handles.h"
#include "support/simulated_nccl/memory.h"
#include "support/simulated_nccl/misuse.h"
#include "support/simulated_nccl/wait.h"

namespace farandole::sim::nccl {
namespace {

bool is_blocking(const ncclConfig_t* config, bool otherwise) {
  if (config == nullptr || config->blocking == NCCL_CONFIG_UNDEF_INT) return otherwise;
  return config->blocking != 0;
}

/// A rank that never comes waits for nothing.
void join(Communicator& joining, const std::atomic<bool>& cancelled, bool is_absent) {
  if (is_absent) {
    while (!cancelled.load()) ::usleep(1000);
    throw Aborted{};
  }
  joining.join(cancelled);
}

bool is_absence(const std::optional<Injection>& injection) {
  return injection && injection->fault == ncclSimulatedAbsence;
}

ncclResult_t init(ncclComm_t* made, const Identity& identity) {
  check_outside_group("ncclCommInitRankConfig");
  const Member member = identity.member;
  if (member.world_size < 1 || member.world_size > kMaxRanks || member.rank < 0 ||
      member.rank >= member.world_size) {
    throw Misuse(ncclInvalidArgument, "rank " + std::to_string(member.rank) + " of " +
                                          std::to_string(member.world_size) +
                                          " cannot be.\nwhy: 1 to " + std::to_string(kMaxRanks) +
                                          " ranks are simulated, numbered from 0.\nfix: use that.");
  }
  const auto injection = injected("ncclCommInitRankConfig", member.rank);
  if (injection && injection->fault == ncclSimulatedReturn) {
    throw Failure(injection->result, "an injected error in ncclCommInitRankConfig.");
  }
  auto communicator = std::make_shared<Communicator>(identity);
  *made = make_handle(communicator);
  return communicator->begin(
      [&joining = *communicator, is_absent = is_absence(injection)] {
        join(joining, joining.aborted(), is_absent);
      },
      nullptr);
}

/// Makes a communicator of some ranks of `parent` in a call of the parent; `identify` runs in its
/// part that may wait, and returns nothing on a rank that gets no communicator.
ncclResult_t begin_child(Communicator& parent, ncclComm_t* made, bool is_absent,
                         std::function<std::optional<Identity>()> identify) {
  *made = nullptr;
  auto child = std::make_shared<std::shared_ptr<Communicator>>();
  return parent.begin(
      [&parent, child, is_absent, identify = std::move(identify)] {
        const std::optional<Identity> identity = identify();
        if (!identity) return;
        *child = std::make_shared<Communicator>(*identity);
        join(**child, parent.aborted(), is_absent);
      },
      [child, made] {
        if (*child != nullptr) *made = make_handle(*child);
      });
}

std::optional<Identity> split(Communicator& parent, int color, int key, bool blocking) {
  const std::vector<HostCall> calls = parent.exchange({HostCall::kSplit, color, key});
  const std::string id = parent.child_id("split");
  if (color == NCCL_SPLIT_NOCOLOR) return std::nullopt;
  const auto order = [&](int rank) {
    return std::make_tuple(calls[static_cast<size_t>(rank)].second, rank);
  };
  Member member{0, 0};
  for (int each = 0; each < parent.world_size(); ++each) {
    if (calls[static_cast<size_t>(each)].first != color) continue;
    ++member.world_size;
    if (order(each) < order(parent.rank())) ++member.rank;
  }
  return Identity{id + "-" + std::to_string(color), member, parent.identity().device, blocking};
}

Identity shrink(Communicator& parent, std::vector<int> excluded, bool blocking) {
  std::sort(excluded.begin(), excluded.end());
  std::string id = parent.child_id("shrink");
  Member member{parent.rank(), parent.world_size()};
  for (int each : excluded) {
    if (each == parent.rank()) {
      throw Misuse(ncclInvalidArgument,
                   parent.name() +
                       " shrinks a communicator without itself.\nwhy: only ranks that "
                       "stay may call.\nfix: leave the call out on this rank.");
    }
    if (each < parent.rank()) --member.rank;
    --member.world_size;
    id += "-" + std::to_string(each);
  }
  return {id, member, parent.identity().device, blocking};
}

/// In the text of ncclGetLastError().
const std::string& error_text_of(ncclComm_t handle) {
  thread_local std::string text;
  text.clear();
  if (handle != nullptr) text = resolve(handle, "ncclGetLastError")->error_text();
  return text.empty() ? last_error() : text;
}

}  // namespace
}  // namespace farandole::sim::nccl

using namespace farandole::sim::nccl;  // NOLINT: the functions below are global

ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  return guarded([&] {
    const auto injection = injected("ncclGetUniqueId", farandole::sim::current_device());
    if (injection) throw Failure(injection->result, "an injected error in ncclGetUniqueId.");
    std::random_device random;
    *id = {};
    std::snprintf(id->internal, sizeof id->internal, "/farandole-simulated-nccl-%d-%08x%08x",
                  ::getpid(), random(), random());
    return ncclSuccess;
  });
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config) {
  return guarded([&] {
    return init(
        comm,
        {id.internal, {rank, nranks}, farandole::sim::current_device(), is_blocking(config, true)});
  });
}

ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* made,
                           ncclConfig_t* config) {
  return call(__func__, comm, [&](Communicator& parent, const auto& injection) {
    check_outside_group("ncclCommSplit");
    parent.check_usable("ncclCommSplit");
    const bool blocking = is_blocking(config, parent.identity().blocking);
    return begin_child(parent, made, is_absence(injection), [&parent, color, key, blocking] {
      return split(parent, color, key, blocking);
    });
  });
}

ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int count, ncclComm_t* made,
                            ncclConfig_t* config, int flags) {
  return call(__func__, comm, [&](Communicator& parent, const auto& injection) {
    check_outside_group("ncclCommShrink");
    if ((flags & NCCL_SHRINK_ABORT) != 0) {
      parent.stop();
    } else {
      parent.check_usable("ncclCommShrink");
    }
    const Identity identity = shrink(parent, std::vector<int>(excluded, excluded + count),
                                     is_blocking(config, parent.identity().blocking));
    return begin_child(parent, made, is_absence(injection), [identity] { return identity; });
  });
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    *error = communicator.poll();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    check_outside_group("ncclCommFinalize");
    return communicator.begin_finalize();
  });
}

ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    check_outside_group("ncclCommDestroy");
    communicator.end();
    memory().remove_all(communicator);
    retire(comm, "ncclCommDestroy");
    return ncclSuccess;
  });
}

ncclResult_t ncclCommAbort(ncclComm_t comm) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    communicator.abort();
    memory().remove_all(communicator);
    retire(comm, "ncclCommAbort");
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCount(ncclComm_t comm, int* count) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    *count = communicator.world_size();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommUserRank(ncclComm_t comm, int* rank) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    *rank = communicator.rank();
    return ncclSuccess;
  });
}

ncclResult_t ncclCommCuDevice(ncclComm_t comm, int* device) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    *device = communicator.identity().device;
    return ncclSuccess;
  });
}

const char* ncclGetErrorString(ncclResult_t result) {
  static constexpr const char* kTexts[] = {"no error",
                                           "unhandled cuda error (run with NCCL_DEBUG=INFO)",
                                           "unhandled system error (run with NCCL_DEBUG=INFO)",
                                           "internal error - please report this issue",
                                           "invalid argument (run with NCCL_DEBUG=WARN)",
                                           "invalid usage (run with NCCL_DEBUG=WARN)",
                                           "remote process exited or there was a network error",
                                           "NCCL operation in progress"};
  return result >= 0 && result < ncclNumResults ? kTexts[result] : "unknown result code";
}

const char* ncclGetLastError(ncclComm_t comm) { return error_text_of(comm).c_str(); }
