// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "comm/fork_guard.h"
#include "farandole/export.h"

namespace farandole {

/// Throws AbortedError: `group` was used after its end.
[[noreturn]] void refuse_after_shutdown(const std::string& group);

/// One order for the collectives of one group, and no thief of a core.
///
/// Protocol. A group runs one collective at a time: whoever runs it has the turn. Each collective
/// takes its number when it is issued, and numbers run in order.
///   - try_begin(): if nothing is queued and nobody has the turn, the caller gets the number and
///   the
///     turn, runs the collective on its own thread and calls end(). Nothing else wakes up.
///   - push(): the task gets the number and a place in the queue. One executor thread, started by
///   the
///     first push, takes tasks in order whenever nobody has the turn. Between tasks it sleeps on a
///     condition variable; it never spins.
///   - a synchronous call that fails try_begin() pushes its task and waits for it.
///   - a task's callbacks may issue collectives too. try_begin() on the executor runs what is
///   queued
///     first, right there, and then succeeds: waiting for itself it would wait for ever.
///   - close(): later calls throw AbortedError. Tasks that are queued still run (their communicator
///   has
///     been aborted by then, so they fail at once), so that nobody waits for a task for ever.
///
/// Threads: any for all functions; tasks run on the executor. A task must not throw.
/// Fork: in a forked child only in_creator() and the destructor may be used.
class FARANDOLE_API CollectiveQueue {
 public:
  using Task = std::function<void()>;

  /// The turn that try_begin() gave, until the end of the scope.
  class Turn {
   public:
    explicit Turn(CollectiveQueue& queue) : queue_(queue) {}
    ~Turn() { queue_.end(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    CollectiveQueue& queue_;
  };

  /// `group` is for messages.
  explicit CollectiveQueue(std::string group);
  /// As close(); in a forked child it only forgets.
  ~CollectiveQueue();
  CollectiveQueue(const CollectiveQueue&) = delete;
  CollectiveQueue& operator=(const CollectiveQueue&) = delete;

  /// The number of the collective that the caller may run now, or 0 if others are ahead.
  uint64_t try_begin();
  /// Gives back the turn that try_begin() gave.
  void end();
  /// Queues `task` and returns its number. The task calls collective_ended() before it tells anyone
  /// that its collective has ended: whoever knows may end the group, while the task is on its last
  /// lines. Throws SystemError if the executor cannot start; then nothing is queued.
  uint64_t push(Task task);
  /// Starts the executor, so that push() need not. Throws SystemError if it cannot start.
  void start();
  void collective_ended();
  /// The number of a collective that neither runs here nor waits for those that do: an accelerator
  /// has it.
  uint64_t number_elsewhere();

  /// Numbers given out so far.
  uint64_t issued() const;
  /// Whether a collective runs or waits in the queue, as far as the caller can know.
  bool busy() const;
  /// Throws AbortedError after close().
  void check_open() const;
  /// Waits until all tasks are done and ends the executor. An executor that is not done after
  /// `grace` (it runs a callback that needs what this thread holds, say), or that is the caller
  /// itself, is let go: it owns all that it still touches.
  void close(std::chrono::milliseconds grace = std::chrono::seconds(2));

  /// False in a forked child of the process that made this.
  bool in_creator() const { return fork_guard_.in_creator(); }

 private:
  struct State;
  std::shared_ptr<State> state_;  // shared with the executor
  comm::ForkGuard fork_guard_;
};

}  // namespace farandole
