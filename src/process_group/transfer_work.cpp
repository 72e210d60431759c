// SPDX-License-Identifier: Apache-2.0
#include "process_group/transfer_work.h"

#include <ATen/core/LegacyTypeDispatch.h>

#include <utility>

#include "farandole/comm/interrupt.h"
#include "log.h"
#include "process_group/flat_tensor.h"
#include "process_group/transfers_in_flight.h"

namespace farandole {

TransferWork::TransferWork(Description description, Parts parts, const char* profiler_title)
    : WorkFarandole(
          std::move(description),
          [communicator =
               std::weak_ptr<comm::Communicator>(parts.communicator)](const std::string& reason) {
            if (const auto alive = communicator.lock()) alive->abort(reason);
          },
          profiler_title),
      parts_(std::move(parts)),
      peer_(parts_.transfer->peer()) {}

TransferWork::~TransferWork() = default;

TransferWork::Parts TransferWork::parts() const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return parts_;
}

bool TransferWork::isCompleted() {
  if (WorkFarandole::isCompleted()) return true;
  const Parts held = parts();  // keeps the communicator alive meanwhile
  if (held.transfer && held.transfer->is_done()) settle();
  return WorkFarandole::isCompleted();
}

bool TransferWork::wait(std::chrono::milliseconds timeout) {
  if (!isCompleted()) {
    if (timeout > kNoTimeout) {
      watch();
    } else if (const Parts held = parts(); held.transfer) {
      try {
        held.transfer->wait(std::chrono::milliseconds(0));
      } catch (const comm::Interrupted&) {
        throw;
      } catch (const std::exception&) {
        // settle() meets it again
      }
      settle();
    }
  }
  return WorkFarandole::wait(timeout);
}

c10::intrusive_ptr<c10::ivalue::Future> TransferWork::getFuture() {
  auto future = WorkFarandole::getFuture();
  if (!isCompleted()) watch();
  return future;
}

int TransferWork::sourceRank() const {
  const std::lock_guard<std::mutex> lock(parts_mutex_);
  return peer_;
}

/// Has a thread of the group settle it as soon as it is done.
void TransferWork::watch() {
  Parts held;
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (watched_ || !parts_.transfer) return;
    TransfersInFlight::start_watching(parts_.in_flight);  // which may throw
    watched_ = true;
    callbacks_.emplace();
    held = parts_;
  }
  held.transfer->when_done([in_flight = held.in_flight] { in_flight->wake(); });
}

/// Takes the result of the transfer, which is done; only the first call does something.
void TransferWork::settle() {
  Parts held;
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    if (!parts_.transfer) return;
    held = std::exchange(parts_, {});
    peer_ = held.transfer->peer();
  }
  std::exception_ptr failure;
  try {
    held.transfer->wait(std::chrono::milliseconds(0));
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    if (held.target.defined()) store_flat(held.flat, held.target);
  } catch (...) {
    failure = std::current_exception();
  }
  held.on_end(*this, failure);
  try {
    complete(failure);
  } catch (const std::exception& error) {
    log(LogLevel::kError, std::string("a callback of a transfer's future threw: ") + error.what());
  }
  {
    const std::lock_guard<std::mutex> lock(parts_mutex_);
    callbacks_.reset();
  }
  held.in_flight->remove(this);
}

}  // namespace farandole
