// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// One collective or transfer on its way, or done: what ProcessGroupFarandole's functions return.
///
/// It keeps its tensors alive. A collective that ran on the calling thread is done when its Work is
/// made; nothing but this object is allocated for it, and a Future only if somebody asks.
/// Threads: any.
/// Streams: none; what is done is in host memory.
class FARANDOLE_API WorkFarandole : public c10d::Work {
 public:
  /// What a Work is made of.
  struct Description {
    int rank = -1;
    c10d::OpType type = c10d::OpType::UNKNOWN;
    const char* operation = "";  ///< "all_reduce"; a literal
    std::string group;           ///< for messages; may stay empty for a finished one
    std::vector<at::Tensor> outputs;
  };
  /// Ends a group for this reason.
  using Abort = std::function<void(const std::string& reason)>;
  /// One that is done, with its number in the group.
  WorkFarandole(Description description, uint64_t sequence);
  /// One that complete() will finish. `abort` ends its group; `profiler_title` is what
  /// torch.profiler shows from now until then, if it watches (nullptr: nothing).
  WorkFarandole(Description description, Abort abort, const char* profiler_title);
  ~WorkFarandole() override;

  bool isCompleted() override;
  /// Whether it is done and went well.
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  /// Waits until it is done and rethrows what went wrong. Throws TimeoutError after `timeout`
  /// (zero: never, the collective has one of its own); it goes on and may be waited for again.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  /// Does nothing: the outputs are in host memory when isCompleted().
  void synchronize() override;
  /// The output tensors.
  std::vector<at::Tensor> result() override;
  /// Holds the output tensors as a list once this is done, or what went wrong. Always the same one.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;
  /// The number of the collective in its group, from 1; 0 for a send or receive.
  uint64_t getSequencenumber() const override;
  /// A number that no other Work of this process has: what completion hooks are told.
  uint64_t completion_key() const { return completion_key_; }
#ifdef C10D_BACKEND_HAS_HOOKS
  uint64_t getCompletionKey() const override { return completion_key_; }
#endif
  /// Ends the whole group unless this is done: peers wait for this collective.
  void abort() override;

  // For ProcessGroupFarandole.
  void set_sequence(uint64_t sequence) { sequence_.store(sequence, std::memory_order_relaxed); }
  /// Finishes it, well or with `error`; called once.
  void complete(std::exception_ptr error);

 protected:
  /// "collective #42 all_reduce"; sends and receives have no number.
  std::string name() const;
  [[noreturn]] void throw_wait_timeout(std::chrono::milliseconds timeout) const;

 private:
  static uint64_t next_completion_key();
  c10::intrusive_ptr<c10::ivalue::Future> make_future() const;
  void fulfil(const c10::intrusive_ptr<c10::ivalue::Future>& future) const;

  const Description description_;
  const Abort abort_;
  const uint64_t completion_key_ = next_completion_key();
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> done_{false};  // completed_ of the base, readable without its mutex
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by mutex_; null until asked for
};

}  // namespace farandole
