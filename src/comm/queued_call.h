// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "farandole/export.h"

namespace farandole::comm {

/// A call of a group that another thread than its caller's runs. It tells whose call it is, and
/// whether the caller waits for it: what crossed_waits.h has to know of it.
///
/// Threads: any; one at a time for each object.
class FARANDOLE_API QueuedCall {
 public:
  /// A thread of this process.
  struct Caller {
    uint32_t number;  ///< from 1; no other thread of the process ever has it
    int thread;       ///< as gettid() has it

    static Caller this_thread();
  };
  /// What calls are put into; lives longer than they.
  struct Queue {
    const std::string group;
    std::atomic<int> calls{0};  ///< that have not ended
  };

  /// A call of this thread, that `queue` counts as `number`. It ends when it is destroyed.
  QueuedCall(Queue& queue, uint64_t number);
  ~QueuedCall();
  QueuedCall(const QueuedCall&) = delete;
  QueuedCall& operator=(const QueuedCall&) = delete;

  const Caller& caller() const { return caller_; }
  /// Whether the caller waits, without a limit, until this call or a later one of the queue ends.
  bool is_awaited() const;

  /// Makes this thread the one that runs `call`, for the life of the object.
  class FARANDOLE_API Run {
   public:
    explicit Run(const QueuedCall& call);
    ~Run();
    Run(const Run&) = delete;
    Run& operator=(const Run&) = delete;

   private:
    const QueuedCall* outer_;
  };
  /// Counts as a call in another queue, for the life of the object: what runs callbacks when it is
  /// done, which may call collectives.
  class FARANDOLE_API Callbacks {
   public:
    Callbacks();
    ~Callbacks();
    Callbacks(const Callbacks&) = delete;
    Callbacks& operator=(const Callbacks&) = delete;
  };
  /// Says that this thread waits until call `number` of the queue of `group` has ended, for the
  /// life of the object. If the wait has a timeout, it must be longer than that of the call. A
  /// queue of another group may have the same name, as one that was made again: what is awaited
  /// there is a call that has not ended in another queue. Takes a lock: make it once the wait takes
  /// long.
  class FARANDOLE_API Wait {
   public:
    Wait(std::string group, uint64_t number);
    ~Wait();
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    const uint32_t thread_;
  };

  /// Whose calls this thread makes: those of the call that it runs, or its own.
  static Caller current_caller();
  /// Whether the caller can do nothing until the current collective ends: it waits for that
  /// collective, and no other queue of this process has a pending call, whichever thread made it.
  static bool is_caller_stuck();

 private:
  Queue& queue_;
  const uint64_t number_;
  const Caller caller_ = Caller::this_thread();
};

}  // namespace farandole::comm
