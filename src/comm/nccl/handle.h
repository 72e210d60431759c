// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "comm/nccl/nccl_api.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::nccl {

/// Owns a ncclComm_t, a non-blocking one: no call of NCCL's keeps this rank for longer than it
/// wants to wait.
///
/// Protocol. `mutex_` is held while NCCL works on the communicator: from the begin of a call until
/// none is in progress any more, and through a whole group. So nobody frees it meanwhile. Who waits
/// with it looks at `abort_asked_`, and every 50 ms at the control communicator. abort() by another
/// thread sets that first, and then either gets the mutex or leaves the rest to its holder. An
/// error frees the communicator under the mutex, is kept in `failure_`, and `over_` is stored after
/// it (release), so that who reads `over_` (acquire) may read `failure_`, which nobody writes
/// again. Then, without the mutex, the control communicator is aborted, which tells the other ranks
/// and may call hooks.
///
/// What is freed ends the kernels that are enqueued, as if they had ended well. `ends_` is stored
/// before: who has seen the end of a kernel and then calls check_open() learns what ended it.
///
/// Threads: groups and the calls in them on one thread; otherwise any. Fork: in a child nothing may
/// be called, and it must not be destroyed.
class Handle {
 public:
  using Milliseconds = std::chrono::milliseconds;
  /// What is waited for, for texts, and how long.
  struct Wait {
    const char* function;
    Milliseconds timeout;
  };

  /// `owner` is as "group 'default' on rank 2 of 8", for texts.
  Handle(const NcclApi& api, std::string owner, std::shared_ptr<Communicator> control);
  /// Aborts what close() has not ended.
  ~Handle();
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  const NcclApi& api() const { return api_; }

  /// Makes the communicator: `make(ncclComm_t*)` calls NCCL, which fills the pointer.
  template <class Make>
  void open(const Wait& wait, const Make& make) {
    Lock lock(mutex_);
    settle(lock, wait, make(&comm_));
  }

  /// Makes that of `child` out of this one, in a call in which both have a part: `make(ncclComm_t
  /// parent, ncclComm_t* made)`. It stays closed where NCCL makes none.
  template <class Make>
  void derive(Handle& child, const Wait& wait, const Make& make) {
    run(wait, [&](ncclComm_t parent) { return make(parent, &derived_); });
    if (derived_ == nullptr) return;
    child.open(wait, [&](ncclComm_t* made) {
      *made = std::exchange(derived_, nullptr);
      return ncclInProgress;
    });
  }

  /// Calls `call(ncclComm_t)` and returns when what it asks for is enqueued; in a group, at once.
  template <class Call>
  void run(const Wait& wait, const Call& call) {
    if (is_in_group()) {
      keep_group_error(wait.function, call(comm_));
      return;
    }
    Lock lock = enter();
    settle(lock, wait, call(comm_));
  }

  /// Calls until end_group() are one operation. Groups nest.
  void begin_group();
  void end_group(Milliseconds timeout);

  /// Throws the error that ends this, if one does; waits 200 ms for it at most.
  void check_open() const;
  /// The same, and asks NCCL for errors of what is enqueued. Does not wait.
  void check();
  bool is_over() const { return over_.load(std::memory_order_acquire); }
  /// Ends what is enqueued, on this rank alone. Returns after 200 ms at the latest; if a group is
  /// open, its end_group() does the rest.
  void abort();
  /// As abort(), and later calls throw `failure`; the other ranks are told.
  void give_up(const std::exception_ptr& failure);
  /// Gives what is enqueued, and the other ranks to close theirs, `patience` to end.
  void close(Milliseconds patience);

 private:
  using Lock = std::unique_lock<std::mutex>;

  bool is_in_group() const { return group_thread_.load() == std::this_thread::get_id(); }
  Lock enter();
  void settle(Lock& lock, const Wait& wait, ncclResult_t result);
  ncclResult_t ask() const;
  std::exception_ptr wait_for(const Wait& wait, ncclResult_t result);
  std::exception_ptr failure_of(const char* function, ncclResult_t result);
  std::exception_ptr timeout_of(const Wait& wait) const;
  void keep_group_error(const char* function, ncclResult_t result);
  void free_aborted(std::exception_ptr failure);
  void tell(const std::exception_ptr& failure);
  std::exception_ptr aborted() const;

  const NcclApi& api_;
  const std::string owner_;
  const std::shared_ptr<Communicator> control_;
  std::atomic<bool> abort_asked_{false};
  std::atomic<bool> ends_{false};  ///< is about to be over
  std::atomic<bool> over_{false};
  std::atomic<std::thread::id> group_thread_{};  ///< that has opened a group; no thread: none
  mutable std::mutex mutex_;
  // All below: guarded by mutex_; failure_ may be read once over_ is set.
  ncclComm_t comm_ = nullptr;
  ncclComm_t derived_ = nullptr;  ///< NCCL fills it while a call is in progress
  std::exception_ptr failure_;
  int depth_ = 0;                         ///< of groups
  const char* group_error_at_ = nullptr;  ///< the function
  ncclResult_t group_error_ = ncclSuccess;
};

}  // namespace farandole::comm::nccl
