// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/handle.h"

#include <functional>

#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/system/pause.h"
#include "comm/shm/system/reason.h"
#include "farandole/error.h"

namespace farandole::comm::nccl {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::microseconds;
using std::chrono::milliseconds;

/// How long an abort waits for a call to notice it, and a rank for the reason of an error that NCCL
/// blames on another one.
constexpr milliseconds kNotice{200};
constexpr milliseconds kReason{500};

/// Between two looks at a call in progress: it is over within microseconds, unless it waits for
/// other ranks.
class Pause {
 public:
  void operator()() {
    if (++looks_ < kEagerLooks) {
      shm::pause_core();
    } else {
      std::this_thread::sleep_for(microseconds(looks_ < 2 * kEagerLooks ? 20 : 500));
    }
  }

 private:
  static constexpr int kEagerLooks = 200;
  int looks_ = 0;
};

std::exception_ptr error_of(const std::function<void()>& check) {
  try {
    check();
  } catch (...) {
    return std::current_exception();
  }
  return nullptr;
}

}  // namespace

Handle::Handle(const NcclApi& api, std::string owner, std::shared_ptr<Communicator> control)
    : api_(api), owner_(std::move(owner)), control_(std::move(control)) {}

Handle::~Handle() {
  if (comm_ != nullptr) api_.CommAbort(comm_);
}

// ---- A call

Handle::Lock Handle::enter() {
  Lock lock(mutex_);
  if (abort_asked_ && !over_) free_aborted(aborted());
  if (over_) {
    lock.unlock();
    check_open();
  }
  return lock;
}

/// Some calls give ncclSuccess and are in progress: ncclCommWindowRegister of NCCL 2.28 is one.
void Handle::settle(Lock& lock, const Wait& wait, ncclResult_t result) {
  if (result == ncclSuccess && (comm_ == nullptr || ask() != ncclInProgress)) return;
  const std::exception_ptr failure =
      wait_for(wait, result == ncclSuccess ? ncclInProgress : result);
  if (!failure) return;
  free_aborted(failure);
  lock.unlock();
  tell(failure);
  std::rethrow_exception(failure);
}

/// What the communicator is at: ncclInProgress, ncclSuccess or an error.
ncclResult_t Handle::ask() const {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = api_.CommGetAsyncError(comm_, &state);
  return asked == ncclSuccess ? state : asked;
}

/// Waits until no call is in progress. Returns why there will be no other one; null: all is well.
std::exception_ptr Handle::wait_for(const Wait& wait, ncclResult_t result) {
  const Clock::time_point begin = Clock::now();
  Clock::time_point next_look = begin + shm::kLivenessInterval;
  Pause pause;
  ncclResult_t state = result;
  while (state == ncclInProgress) {
    if (abort_asked_) return aborted();
    state = ask();
    if (state != ncclInProgress) break;
    const Clock::time_point now = Clock::now();
    if (now - begin >= wait.timeout) return timeout_of(wait);
    if (now >= next_look) {
      if (auto failure = error_of([this] { control_->check_alive(); })) return failure;
      next_look = now + shm::kLivenessInterval;
    }
    pause();
  }
  return state == ncclSuccess ? nullptr : failure_of(wait.function, state);
}

// ---- Groups

void Handle::begin_group() {
  if (!is_in_group()) {
    enter().release();  // held until end_group()
    group_thread_ = std::this_thread::get_id();
    group_error_ = ncclSuccess;
  }
  ++depth_;
  keep_group_error("ncclGroupStart", api_.GroupStart());
}

void Handle::end_group(Milliseconds timeout) {
  if (!is_in_group()) return;
  const ncclResult_t result = api_.GroupEnd();
  if (--depth_ > 0) {
    keep_group_error("ncclGroupEnd", result);
    return;
  }
  group_thread_ = std::thread::id();
  Lock lock(mutex_, std::adopt_lock);
  if (group_error_ != ncclSuccess) {
    settle(lock, {group_error_at_, timeout}, group_error_);
  } else {
    settle(lock, {"ncclGroupEnd", timeout}, result);
  }
  if (!abort_asked_) return;
  const std::exception_ptr failure = aborted();
  free_aborted(failure);
  std::rethrow_exception(failure);
}

/// NCCL tells an error of a group again at its end, but no longer whose it is.
void Handle::keep_group_error(const char* function, ncclResult_t result) {
  if (result == ncclSuccess || result == ncclInProgress || group_error_ != ncclSuccess) return;
  group_error_at_ = function;
  group_error_ = result;
}

// ---- Errors

std::exception_ptr Handle::failure_of(const char* function, ncclResult_t result) {
  if (result == ncclRemoteError) {  // the control communicator learns of whom within a moment
    const Clock::time_point deadline = Clock::now() + kReason;
    while (Clock::now() < deadline) {
      if (auto failure = error_of([this] { control_->check_alive(); })) return failure;
      std::this_thread::sleep_for(milliseconds(10));
    }
  }
  const char* const last = api_.GetLastError(comm_);
  const std::string detail = last == nullptr ? "" : last;
  return std::make_exception_ptr(CommError(
      "nccl-failed",
      std::string(function) + " failed in " + owner_ + ": " + api_.GetErrorString(result) + ".",
      detail.empty() ? "NCCL " + version_text(api_.version) + " tells no more." : detail,
      "set NCCL_DEBUG=INFO to see what NCCL does; each rank needs a GPU of its own, chosen with "
      "torch.cuda.set_device(local_rank) before the group's first collective on it; then make a "
      "new group."));
}

std::exception_ptr Handle::timeout_of(const Wait& wait) const {
  return std::make_exception_ptr(TimeoutError(
      "nccl-timeout",
      std::string(wait.function) + " in " + owner_ + " was not done after " +
          std::to_string(wait.timeout.count()) + " ms.",
      "it connects to the other ranks: one of them has not come to this call, or the network "
      "between their GPUs does not work.",
      "look at the other ranks' output; set NCCL_DEBUG=INFO and, if hosts have several networks, "
      "NCCL_SOCKET_IFNAME; if it is only slow, pass a longer timeout."));
}

/// Why another thread has aborted: who did has told the control communicator.
std::exception_ptr Handle::aborted() const {
  if (auto failure = error_of([this] { control_->check_usable(); })) return failure;
  return std::make_exception_ptr(AbortedError(
      "nccl-aborted", "the NCCL communicator of " + owner_ + " was used after it had ended.",
      "it was aborted or destroyed on this rank.",
      "make a new group with init_process_group() or new_group()."));
}

void Handle::check_open() const {
  if (!ends_) return;
  const Clock::time_point deadline = Clock::now() + kNotice;
  while (!is_over() && Clock::now() < deadline) std::this_thread::sleep_for(microseconds(100));
  std::rethrow_exception(is_over() ? failure_ : aborted());
}

void Handle::check() {
  check_open();
  Lock lock(mutex_, std::try_to_lock);
  if (!lock || comm_ == nullptr) return;  // who has it looks for himself
  const ncclResult_t state = ask();
  if (state != ncclInProgress) settle(lock, {"an operation that was enqueued", {}}, state);
}

// ---- The end

void Handle::free_aborted(std::exception_ptr failure) {
  ends_ = true;
  if (comm_ != nullptr) api_.CommAbort(std::exchange(comm_, nullptr));
  failure_ = std::move(failure);
  over_.store(true, std::memory_order_release);
}

/// Every rank finds out for itself that one is lost, and is not to take that for an abort.
void Handle::tell(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const PeerFailure&) {
  } catch (const std::exception& error) {
    control_->abort(owner_ + " gave up: " + shm::reason_of(error.what()));
  }
}

void Handle::abort() {
  abort_asked_ = true;
  const Clock::time_point deadline = Clock::now() + kNotice;
  while (!over_ && Clock::now() < deadline) {
    if (const Lock lock(mutex_, std::try_to_lock); lock) {
      if (!over_) free_aborted(aborted());
      return;
    }
    std::this_thread::sleep_for(microseconds(100));
  }
}

void Handle::give_up(const std::exception_ptr& failure) {
  if (const Lock lock(mutex_, std::try_to_lock); lock && !over_) free_aborted(failure);
  tell(failure);
  abort();
}

void Handle::close(Milliseconds patience) {
  Lock lock(mutex_);
  if (over_ || comm_ == nullptr) return;
  const Wait wait{"ncclCommFinalize", patience};
  const ncclResult_t result = api_.CommFinalize(comm_);
  if (result == ncclSuccess || !wait_for(wait, result)) {
    api_.CommDestroy(std::exchange(comm_, nullptr));
  }
  free_aborted(aborted());
}

}  // namespace farandole::comm::nccl
