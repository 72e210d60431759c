// SPDX-License-Identifier: Apache-2.0
// How ProcessGroupFarandole tells the time of collectives that it does not run.
#include "farandole/error.h"
#include "process_group/process_group_private.h"

namespace farandole {

void ProcessGroupFarandole::startTimeEstimate() {
  static constexpr Operation kOperation{c10d::OpType::UNKNOWN, "start_time_estimate",
                                        "farandole:start_time_estimate"};
  const auto present = communicators();
  TimeEstimator& estimator = present->estimator();
  if (!estimator.measured()) {
    present->launch({kOperation, {}, /*async=*/false, kNoTimeout, /*cost=*/{}},
                    [&estimator](comm::Communicator& communicator, const auto& options) {
                      estimator.measure(communicator, options);
                    });
  }
  estimator.start();
}

float ProcessGroupFarandole::endTimeEstimate() {
  if (const auto microseconds = communicators()->estimator().end()) return *microseconds;
  throw InvalidArgument(
      "time-estimate-without-start",
      "end_time_estimate was called for group '" + name() + "' without a start.",
      "collectives were run since then, and not estimated.",
      "call it once after each start, as torch.distributed._time_estimator() does.");
}

}  // namespace farandole
