// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/pending_checkpoint.h"

#include <chrono>

namespace farandole {

std::string PendingCheckpoint::wait() const {
  outcome_->known.wait();
  outcome_->was_reported = true;
  return outcome_->known.get();
}

bool PendingCheckpoint::is_done() const {
  return outcome_->known.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace farandole
