// SPDX-License-Identifier: Apache-2.0
// The collectives of ProcessGroupFarandole that only wait.
#include "process_group/process_group_private.h"

namespace farandole {

ProcessGroupFarandole::Work ProcessGroupFarandole::barrier(const c10d::BarrierOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::BARRIER, "barrier", "farandole:barrier"};
  return launch(
      {kOperation, {}, opts.asyncOp, opts.timeout, Cost{}},
      [](comm::Communicator& communicator, const auto& options) { communicator.barrier(options); });
}

/// A barrier tells all missing ranks at its timeout. The others grant rank 0 a little more time, so
/// that it is the one that names them; they hear it from there.
void ProcessGroupFarandole::monitoredBarrier(const c10d::BarrierOptions& opts,
                                             bool /*wait_all_ranks*/) {
  static constexpr Operation kOperation{c10d::OpType::BARRIER, "monitored_barrier",
                                        "farandole:monitored_barrier"};
  constexpr std::chrono::milliseconds kAfterRank0{500};
  std::chrono::milliseconds timeout = communicators()->timeout_of(opts.timeout);
  if (timeout > kNoTimeout && rank_ != 0) timeout += kAfterRank0;
  launch(
      {kOperation, {}, /*async=*/false, timeout, Cost{}},
      [](comm::Communicator& communicator, const auto& options) { communicator.barrier(options); });
}

}  // namespace farandole
