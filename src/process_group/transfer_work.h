// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/queued_call.h"
#include "farandole/comm/communicator.h"
#include "farandole/process_group/work.h"

namespace farandole {

class TransfersInFlight;

/// A send or receive on its way, or done.
///
/// The communicator moves the bytes in any case; who asks for the result (wait(), isCompleted(),
/// the future) notices that they have come and copies them where a receive's tensor is not flat. It
/// keeps the tensors and the communicator alive until then.
/// Threads: any.
class TransferWork final : public WorkFarandole {
 public:
  /// What is under way.
  struct Parts {
    std::shared_ptr<comm::Communicator> communicator;
    std::shared_ptr<comm::Transfer> transfer;  ///< of `communicator`
    at::Tensor flat;                           ///< the memory that the transfer reads or fills
    at::Tensor target;  ///< where a receive's `flat` goes in the end; undefined for a send
    std::shared_ptr<TransfersInFlight> in_flight;
    /// Told once how it ended, before it is done.
    std::function<void(const WorkFarandole&, const std::exception_ptr&)> on_end;
  };
  TransferWork(Description description, Parts parts, const char* profiler_title);
  ~TransferWork() override;

  bool isCompleted() override;
  /// As WorkFarandole's. Without a timeout it waits as long as the group's is and then fails the
  /// group; a timeout of its own fails this call alone.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// The rank at the other side; for a receive from any source, once it is done.
  int sourceRank() const override;

 private:
  Parts parts() const;
  void watch();
  void settle();

  mutable std::mutex parts_mutex_;
  Parts parts_;           // guarded by parts_mutex_; empty once it is done
  int peer_ = -1;         // guarded by parts_mutex_
  bool watched_ = false;  // guarded by parts_mutex_
  std::optional<comm::QueuedCall::Callbacks> callbacks_;  // guarded by parts_mutex_; it is watched
};

}  // namespace farandole
