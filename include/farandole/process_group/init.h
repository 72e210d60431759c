// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// A group of ranks, of any backend; the empty pointer means the default group.
using Group = c10::intrusive_ptr<c10d::ProcessGroup>;

/// How the default group finds its ranks. All defaults: from torchrun's variables, else alone.
struct InitOptions {
  int rank = -1;        ///< -1: the launcher's
  int world_size = -1;  ///< -1: the launcher's
  /// Where the ranks meet, if not given by `init_method`; rank and world_size must be given too.
  c10::intrusive_ptr<c10d::Store> store;
  /// "tcp://host:port" (rank 0 serves it), "file:///path", "env://" or empty.
  std::string init_method;
  std::chrono::milliseconds timeout = kBackendDefaultTimeout;  ///< of every collective
};

/// Makes the default group, with the backend farandole for tensors on CPU and CUDA. Collective.
///
/// It is the group that torch.distributed calls WORLD when Python made one in this process: then
/// that one is returned and `options` must be the defaults. Without a launcher this process is rank
/// 0 of 1, and one line on standard error says so. Throws InvalidArgument (options or variables are
/// incomplete), TimeoutError (a rank did not arrive). Threads: one at a time.
FARANDOLE_API Group init_process_group(const InitOptions& options = {});

/// The default group; throws InvalidArgument if there is none yet.
FARANDOLE_API Group default_group();
/// Whether there is a default group.
FARANDOLE_API bool is_initialized();

/// A group of the ranks `ranks` of the default group, in that order. Every rank of the default
/// group calls it, in the same order of calls; those that are not in it get the empty pointer.
FARANDOLE_API Group new_group(const std::vector<int>& ranks,
                              std::chrono::milliseconds timeout = kBackendDefaultTimeout);

/// Replaces a group (the default one: the empty pointer) by one of its ranks that are not in
/// `excluded`, in the same order; each of them calls it, also after a rank has died. The old group
/// ends; with the default group all others do. They meet in the store of the old group, which must
/// live: not the one that a dead rank 0 served for tcp://.
FARANDOLE_API Group shrink_group(const std::vector<int64_t>& excluded, const Group& group = {});

/// Fails every collective of the group, here and on its peers, within 100 ms.
FARANDOLE_API void abort(const Group& group = {});
/// Ends the group on this rank: what is pending is aborted. The default group (the empty pointer)
/// takes all groups of new_group() along, and init_process_group() may be called again.
FARANDOLE_API void destroy(const Group& group = {});

}  // namespace farandole
