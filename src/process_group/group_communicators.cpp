// SPDX-License-Identifier: Apache-2.0
#include "process_group/group_communicators.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <torch/version.h>

#include <algorithm>
#include <utility>

#include "comm/shm/system/reason.h"
#include "farandole/comm/backends.h"
#include "farandole/error.h"
#include "log.h"
#include "process_group/launch.h"
#include "process_group/store_adapter.h"

namespace farandole {
namespace {

using Clock = std::chrono::steady_clock;

c10d::ErrorType error_type_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const TimeoutError&) {
    return c10d::ErrorType::TIMEOUT;
  } catch (const PeerFailure&) {
    return c10d::ErrorType::REMOTE_ERROR;
  } catch (const MismatchError&) {
    return c10d::ErrorType::SUCCESS;  // the group stays usable
  } catch (const CommError&) {
    return c10d::ErrorType::COMM_ERROR;
  } catch (...) {
    return c10d::ErrorType::SUCCESS;
  }
}

/// Finishes `work` on the executor, which must outlive what callbacks of the future throw.
void complete(WorkFarandole& work, const std::exception_ptr& failure) {
  try {
    work.complete(failure);
  } catch (const std::exception& error) {
    log(LogLevel::kError,
        std::string("a callback of a collective's future threw: ") + error.what());
  }
}

}  // namespace

void GroupCommunicators::AbortNotice::give() {
  const std::lock_guard<std::recursive_mutex> lock(mutex);
  if (!std::exchange(given, true)) hooks->abort.call();
}

std::shared_ptr<GroupCommunicators> GroupCommunicators::form(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size, const Parts& parts) {
  auto notice = std::make_shared<AbortNotice>();
  notice->hooks = parts.hooks;
  StoreAdapter adapter(store);
  comm::CommunicatorOptions options;
  options.name = parts.group;
  options.rank = rank;
  options.world_size = size;
  // torch passes its default on; FARANDOLE_TIMEOUT_S takes its place, an explicit one stays.
  if (parts.timeout != kBackendDefaultTimeout) options.config.timeout = parts.timeout;
  options.formation_timeout = parts.formation_timeout;
  options.build = "torch " TORCH_VERSION;
  options.attempt = find_attempt();
  options.while_forming = parts.while_forming;
  options.before_abort = [notice] { notice->give(); };
  const std::string backend = comm::backend_for(comm::MemoryKind::kHost, options.config.backend);
  auto host = comm::make_communicator(backend, adapter, options);
  adapter.delete_own_keys();  // formation ends with a collective: nobody reads them any more
  const std::shared_ptr<GroupCommunicators> formed(
      new GroupCommunicators(parts, std::move(host), options.config.timeout, std::move(notice)));
  formed->remember_formation(store, options);
  return formed;
}

GroupCommunicators::GroupCommunicators(Parts parts, std::shared_ptr<comm::Communicator> host,
                                       std::chrono::milliseconds default_timeout,
                                       std::shared_ptr<AbortNotice> notice)
    : parts_(std::move(parts)),
      host_(std::move(host)),
      default_timeout_(default_timeout),
      notice_(std::move(notice)),
      timeout_(parts_.timeout),
      collectives_(parts_.group),
      one_sided_(parts_.group) {}

void GroupCommunicators::set_timeout(std::chrono::milliseconds timeout) {
  timeout_.store(timeout);
  host_->set_timeout(timeout);
  for (const Lane& each : lanes()) {
    if (const auto communicator = each->communicator()) communicator->set_timeout(timeout);
  }
}

std::chrono::milliseconds GroupCommunicators::timeout_of(std::chrono::milliseconds asked) const {
  if (asked > kNoTimeout) return asked;
  const std::chrono::milliseconds own = timeout_.load(std::memory_order_relaxed);
  return own == kBackendDefaultTimeout ? kNoTimeout : own;  // zero: the communicator's own
}

GroupCommunicators::Work GroupCommunicators::launch(Call call, Body body) {
  call.timeout = timeout_of(call.timeout);
  if (!in_creator()) {
    if (!call.device.is_cpu()) host_->check_usable();  // throws; the body knows other communicators
    return run_here(call, body, 0);                    // throws
  }
  if (call.cost && estimator_.add(*call.cost)) return finished(call.operation, call.outputs);
  if (C10_UNLIKELY(!call.device.is_cpu())) return launch_on_device(call, std::move(body));
  if (!call.async) {
    if (const uint64_t sequence = collectives_.try_begin()) {
      const CollectiveQueue::Turn turn(collectives_);
      return run_here(call, body, sequence);
    }
  }
  const bool wait_here = !call.async;
  Work work = enqueue(/*one_sided=*/false, call, std::move(body));
  if (wait_here) work->wait();
  return work;
}

GroupCommunicators::Work GroupCommunicators::launch_one_sided(Call call, Body body) {
  call.timeout = timeout_of(call.timeout);
  if (!in_creator() || !call.async) return run_here(call, body, 0);
  return enqueue(/*one_sided=*/true, call, std::move(body));
}

GroupCommunicators::Work GroupCommunicators::finished(const Operation& operation,
                                                      std::vector<at::Tensor> outputs) const {
  return c10::make_intrusive<WorkFarandole>(
      WorkFarandole::Description{rank(), operation.type, operation.name, {}, std::move(outputs)},
      /*sequence=*/0);
}

GroupCommunicators::Work GroupCommunicators::run_here(Call& call, const Body& body,
                                                      uint64_t sequence) {
  at::RecordFunction profile(at::RecordScope::USER_SCOPE);
  if (C10_UNLIKELY(profile.isActive())) profile.before(call.operation.profiler_title);
  const bool timed = wants_completions();
  const Clock::time_point begin = timed ? Clock::now() : Clock::time_point();
  try {
    // Outputs are plain memory here: no gradient is recorded, no version counted.
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    comm::CollectiveOptions options;
    options.timeout = call.timeout;
    body(*host_, options);
  } catch (...) {
    note_failure(std::current_exception());
    throw;
  }
  auto work = c10::make_intrusive<WorkFarandole>(
      WorkFarandole::Description{
          rank(), call.operation.type, call.operation.name, {}, std::move(call.outputs)},
      sequence);
  if (timed) note_completion(*work, Clock::now() - begin);
  return work;
}

GroupCommunicators::Work GroupCommunicators::enqueue(bool one_sided, Call& call, Body body) {
  CollectiveQueue& queue = one_sided ? one_sided_ : collectives_;
  const char* title = at::hasCallbacks() ? call.operation.profiler_title : nullptr;
  auto work = c10::make_intrusive<WorkFarandole>(
      WorkFarandole::Description{rank(), call.operation.type, call.operation.name, group(),
                                 std::move(call.outputs)},
      [communicator = host_](const std::string& reason) { communicator->abort(reason); }, title);
  const comm::CollectiveOptions options{call.timeout, /*sleep_at_once=*/true};
  // The task shares what it needs: the group may be gone when it runs.
  CollectiveQueue::Task task = [work, options, &queue, body = std::move(body),
                                self = shared_from_this()] {
    const bool timed = self->wants_completions();
    const Clock::time_point begin = timed ? Clock::now() : Clock::time_point();
    std::exception_ptr failure;
    try {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      body(*self->host_, options);
    } catch (...) {
      failure = std::current_exception();
      self->note_failure(failure);
    }
    if (timed && !failure) self->note_completion(*work, Clock::now() - begin);
    queue.collective_ended();  // `self` owns it
    complete(*work, failure);
  };
  if (one_sided) {
    queue.push(std::move(task));
  } else {
    work->set_sequence(push_collective(std::move(task)));
  }
  return work;
}

/// A rank that cannot start the executor ends the group. Otherwise it would be one collective
/// behind the others, and if the program caught the error, its next collective could be matched
/// with this one.
uint64_t GroupCommunicators::push_collective(CollectiveQueue::Task task) {
  try {
    return collectives_.push(std::move(task));
  } catch (const SystemError& error) {
    note_failure(std::current_exception());
    abort("rank " + std::to_string(rank()) +
          " could not start a collective: " + comm::shm::reason_of(error.what()));
    throw;
  }
}

void GroupCommunicators::note_error(const std::exception_ptr& failure) const {
  c10d::ErrorType none = c10d::ErrorType::SUCCESS;
  parts_.error->compare_exchange_strong(none, error_type_of(failure));
}

/// A rank that hears of a peer's abort does not abort itself; its hooks are told all the same.
void GroupCommunicators::note_failure(const std::exception_ptr& failure) const {
  if (error_type_of(failure) == c10d::ErrorType::SUCCESS) return;
  note_error(failure);
  if (in_creator()) notice_->give();
}

void GroupCommunicators::note_completion(const WorkFarandole& work,
                                         Clock::duration duration) const {
  const std::chrono::duration<float, std::milli> milliseconds = duration;
  parts_.hooks->completion.call(work.completion_key(), milliseconds.count());
}

void GroupCommunicators::abort(const std::string& reason) {
  for (const Lane& each : lanes()) each->abort(reason);
  host_->abort(reason);
}

/// An orderly end is no failure: it calls no abort hooks, even if a task is on its last lines.
void GroupCommunicators::end(const std::string& reason) {
  if (const std::unique_lock<std::recursive_mutex> lock(notice_->mutex, std::try_to_lock); lock) {
    notice_->given = true;  // where they run at this moment it is true already
  }
  const std::vector<Lane> lanes = this->lanes();
  for (const Lane& each : lanes) each->drain();
  if (collectives_.busy() || one_sided_.busy() || transfers_->busy()) abort(reason);
  for (const Lane& each : lanes) each->end();
  collectives_.close();
  one_sided_.close();
  transfers_->close();
}

}  // namespace farandole
