// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/pending_checkpoint.h"

#include <unistd.h>

#include <chrono>

#include "farandole/error.h"

namespace farandole {

std::string PendingCheckpoint::wait() const {
  if (::getpid() != outcome_->saving && !is_done()) {
    throw CheckpointError("checkpoint-forked-child",
                          "a forked child process waited for an asynchronous save.",
                          "the thread that writes it is in the process that began it.",
                          "call wait() there, or before the fork.");
  }
  outcome_->known.wait();
  outcome_->was_reported = true;
  return outcome_->known.get();
}

bool PendingCheckpoint::is_done() const {
  return outcome_->known.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace farandole
