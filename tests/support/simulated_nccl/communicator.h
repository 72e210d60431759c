// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/simulated_device/launch_order.h"
#include "support/simulated_nccl/call_in_progress.h"
#include "support/simulated_nccl/operation.h"
#include "support/simulated_nccl/region.h"

namespace farandole::sim::nccl {

/// What a communicator is made with.
struct Identity {
  std::string id;  ///< the same on all ranks; a name for shared memory
  Member member;
  int device;
  bool blocking;
};

/// A call in which ranks wait for each other on the host, and its arguments.
struct HostCall {
  enum Function : int64_t { kSplit, kWindowRegister };
  Function function;
  int64_t first;
  int64_t second;
};

/// One rank of a communicator. Kernels of one communicator run in the order of their launches, on
/// whichever streams, and hold it alive. Those that a graph holds are launched by its replays.
///
/// Threads: any, but calls other than poll(), abort() and the getters one at a time, as in NCCL.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  explicit Communicator(Identity identity);

  const Identity& identity() const { return identity_; }
  int rank() const { return identity_.member.rank; }
  int world_size() const { return identity_.member.world_size; }
  /// "rank 1 of 2".
  std::string name() const;

  /// Waits for all ranks, and for as long as `cancelled` is not set. Throws Misuse if they do not
  /// fit together.
  void join(const std::atomic<bool>& cancelled);
  const std::atomic<bool>& aborted() const { return aborted_; }

  /// A call of two parts: `work` may wait for other ranks, `finish` may not. A blocking
  /// communicator does both and throws what they throw; another returns ncclInProgress.
  ncclResult_t begin(std::function<void()> work, std::function<void()> finish);
  /// The asynchronous error, or ncclInProgress, or ncclSuccess.
  ncclResult_t poll();
  /// Throws if no operation may begin: Misuse, or Failure with the asynchronous error.
  void check_usable(const std::string& function) const;
  std::string error_text() const;

  /// Numbers an operation.
  uint64_t next_call() { return ++calls_; }
  /// Puts operations on their streams as one kernel.
  void launch(const std::vector<Operation>& operations);
  /// Gives `mine` to all ranks; returns those of all, by rank.
  std::vector<HostCall> exchange(HostCall mine);
  /// The id of a new communicator of ranks of this one that give the same `kind`; calls are
  /// counted by kind.
  std::string child_id(const std::string& kind);
  /// A call that waits for its kernels, then for all ranks to do the same. Nothing may be called
  /// after it but end() and abort().
  ncclResult_t begin_finalize();
  /// Finalizes unless that was done, and waits. Throws Misuse in states that only abort() ends, and
  /// while a graph holds kernels of it.
  void end();
  /// Ends kernels, for a communicator that will only be shrunk, aborted or destroyed.
  void stop();
  bool is_stopped() const { return stopped_.load(); }
  /// Ends all that waits in this rank. Other ranks do not notice.
  void abort();

  ncclRedOp_t add_operator(ncclDataType_t dtype, const Factor& factor);
  /// Throws Misuse if this communicator has none of this number and type.
  Factor factor_of(ncclRedOp_t op, ncclDataType_t dtype) const;
  void remove_operator(ncclRedOp_t op);

 private:
  struct Operator {
    ncclDataType_t dtype;
    Factor factor;
  };

  /// The kernel.
  void run(const std::vector<Operation>& operations);
  void finalize();
  void suffer(const Injection& injection);
  /// Sets the asynchronous error; the first one stays.
  void fail(ncclResult_t result, const std::string& text);
  /// Calls `part` and makes what it throws the asynchronous error.
  void contain(const std::function<void()>& part);
  [[noreturn]] void publish(const std::string& text);

  const Identity identity_;
  const std::shared_ptr<Region> region_;
  std::atomic<bool> aborted_{false};
  std::atomic<bool> stopped_{false};
  std::atomic<bool> finalized_{false};
  /// Of kernels. Those that graphs hold share it.
  const std::shared_ptr<LaunchOrder> order_ = std::make_shared<LaunchOrder>();
  CallInProgress call_;
  uint64_t calls_ = 0;
  uint64_t host_calls_ = 0;
  mutable std::mutex mutex_;
  // All below: guarded by mutex_.
  ncclResult_t error_ = ncclSuccess;
  std::string error_text_;
  std::map<std::string, int> children_;
  std::map<int, Operator> operators_;
  int next_operator_ = ncclNumOps;
};

}  // namespace farandole::sim::nccl
