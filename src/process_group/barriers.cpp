// SPDX-License-Identifier: Apache-2.0
// The barriers of ProcessGroupFarandole.
#include "process_group/process_group_private.h"

namespace farandole {

/// Of a group that works on accelerators: who has passed knows that the devices of all ranks have
/// done what they were given before, as with NCCL.
ProcessGroupFarandole::Work ProcessGroupFarandole::barrier(const c10d::BarrierOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::BARRIER, "barrier", "farandole:barrier"};
  std::shared_ptr<DevicePoints> points;
  if (in_creator()) {
    auto present = communicators()->points_on_devices(opts.device);
    if (!present.empty()) points = std::make_shared<DevicePoints>(std::move(present));
  }
  return launch({kOperation, {}, opts.asyncOp, opts.timeout, Cost{}},
                [points](comm::Communicator& communicator, const auto& options) {
                  if (points) points->wait();
                  communicator.barrier(options);
                });
}

/// At its timeout a monitored barrier names all missing ranks. The other ranks wait a little longer
/// than rank 0, so that rank 0 names the missing ranks, and they get its error.
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
