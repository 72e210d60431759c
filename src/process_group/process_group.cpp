// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/process_group.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include "farandole/comm/backends.h"
#include "farandole/error.h"
#include "farandole/process_group/work.h"
#include "log.h"
#include "process_group/live_groups.h"
#include "process_group/process_group_private.h"
#include "process_group/store_adapter.h"
#include "process_group/transfers_in_flight.h"

namespace farandole {
namespace {

std::unique_ptr<comm::Communicator> connect(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                            int size, const std::string& name,
                                            std::chrono::milliseconds timeout) {
  StoreAdapter adapter(store, rank);
  comm::CommunicatorOptions options;
  options.name = name;
  options.rank = rank;
  options.world_size = size;
  // torch passes its default on; FARANDOLE_TIMEOUT_S takes its place, an explicit one stays.
  if (timeout != kBackendDefaultTimeout) options.config.timeout = timeout;
  return comm::make_communicator("shm", adapter, options);
}

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

/// The turn that try_begin() gave, until the end of the scope.
class Turn {
 public:
  explicit Turn(CollectiveQueue& queue) : queue_(queue) {}
  ~Turn() { queue_.end(); }

 private:
  CollectiveQueue& queue_;
};

}  // namespace

void note_error(std::atomic<c10d::ErrorType>& first, const std::exception_ptr& error) {
  c10d::ErrorType none = c10d::ErrorType::SUCCESS;
  first.compare_exchange_strong(none, error_type_of(error));
}

ProcessGroupFarandole::Options::Options(std::chrono::milliseconds group_timeout)
    : c10d::Backend::Options("farandole", group_timeout) {}
ProcessGroupFarandole::Options::~Options() = default;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupFarandole::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}
#endif

ProcessGroupFarandole::ProcessGroupFarandole(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, const c10::intrusive_ptr<Options>& options)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>(*options)),
      name_(options->group_name.empty() ? "default" : options->group_name),
      store_(store),
      timeout_(options_->timeout),
      error_(std::make_shared<std::atomic<c10d::ErrorType>>(c10d::ErrorType::SUCCESS)) {
  options_->group_name = name_;
  communicator_ = connect(store, rank, size, name_, options_->timeout);
  topology_ = communicator_->topology();
  queue_ = std::make_unique<CollectiveQueue>(name_);
  transfers_ = std::make_shared<TransfersInFlight>();
  remember(*this);
}

ProcessGroupFarandole::~ProcessGroupFarandole() {
  forget(*this);
  if (queue_->in_creator()) {
    shutdown();
  } else {
    // A forked child holds a copy that it must not touch: the rank lives in its parent.
    new std::shared_ptr<comm::Communicator>(std::move(communicator_));
    new std::shared_ptr<TransfersInFlight>(std::move(transfers_));
  }
}

c10::intrusive_ptr<ProcessGroupFarandole> ProcessGroupFarandole::of(c10d::ProcessGroup& group) {
  try {
    const c10::intrusive_ptr<Backend> backend = group.getBackend(c10::DeviceType::CPU);
    auto* ours = dynamic_cast<ProcessGroupFarandole*>(backend.get());
    // The wrapper of torch's DETAIL mode passes the options on of what it wraps.
    if (ours == nullptr) ours = owner_of(backend->getBackendOptions().get());
    if (ours == nullptr) return {};
    return c10::intrusive_ptr<ProcessGroupFarandole>::unsafe_reclaim_from_nonowning(ours);
  } catch (const c10::Error&) {
    return {};  // it has no backend for CPU tensors, or one without options
  }
}

const std::string ProcessGroupFarandole::getBackendName() const { return "farandole"; }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupFarandole::getBackendOptions() {
  return options_;
}

std::shared_ptr<comm::Communicator> ProcessGroupFarandole::communicator() const {
  if (!queue_->in_creator()) return communicator_;  // the mutex may have been held at the fork
  const std::lock_guard<std::mutex> lock(mutex_);
  return communicator_;
}

std::chrono::milliseconds ProcessGroupFarandole::timeout_of(std::chrono::milliseconds asked) const {
  if (asked > kNoTimeout) return asked;
  const std::chrono::milliseconds own = timeout_.load(std::memory_order_relaxed);
  return own == kBackendDefaultTimeout ? kNoTimeout : own;  // zero: the communicator's own
}

ProcessGroupFarandole::Work ProcessGroupFarandole::launch(Call call, Body body) {
  std::shared_ptr<comm::Communicator> communicator = this->communicator();
  call.timeout = timeout_of(call.timeout);
  if (!queue_->in_creator()) return run_here(call, body, *communicator, 0);  // throws
  if (!call.async) {
    if (const uint64_t sequence = queue_->try_begin()) {
      const Turn turn(*queue_);
      return run_here(call, body, *communicator, sequence);
    }
  }
  const bool wait_here = !call.async;
  Work work = enqueue(call, std::move(body), std::move(communicator));
  if (wait_here) work->wait();
  return work;
}

ProcessGroupFarandole::Work ProcessGroupFarandole::run_here(Call& call, const Body& body,
                                                            comm::Communicator& communicator,
                                                            uint64_t sequence) {
  at::RecordFunction profile(at::RecordScope::USER_SCOPE);
  if (C10_UNLIKELY(profile.isActive())) profile.before(call.operation.profiler_title);
  try {
    run(call, body, communicator);
  } catch (...) {
    note_error(*error_, std::current_exception());
    throw;
  }
  return c10::make_intrusive<WorkFarandole>(
      WorkFarandole::Description{
          rank_, call.operation.type, call.operation.name, {}, std::move(call.outputs)},
      sequence);
}

ProcessGroupFarandole::Work ProcessGroupFarandole::enqueue(
    Call& call, Body body, std::shared_ptr<comm::Communicator> communicator) {
  const char* title = at::hasCallbacks() ? call.operation.profiler_title : nullptr;
  auto work = c10::make_intrusive<WorkFarandole>(
      WorkFarandole::Description{rank_, call.operation.type, call.operation.name, name(),
                                 std::move(call.outputs)},
      [communicator] { communicator->abort("abort() was called on a Work"); }, title);
  // The task shares what it needs: the group may be gone when it runs.
  const comm::CollectiveOptions options{call.timeout, /*sleep_at_once=*/true};
  work->set_sequence(queue_->push([=, body = std::move(body), error = error_] {
    std::exception_ptr failure;
    try {
      const at::AutoDispatchBelowADInplaceOrView below_autograd;
      body(*communicator, options);
    } catch (...) {
      failure = std::current_exception();
      note_error(*error, failure);
    }
    complete(*work, failure);
  }));
  return work;
}

void ProcessGroupFarandole::run(const Call& call, const Body& body,
                                comm::Communicator& communicator) {
  // Outputs are plain memory here: no gradient is recorded, no version counted.
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  comm::CollectiveOptions options;
  options.timeout = call.timeout;
  body(communicator, options);
}

void ProcessGroupFarandole::setSequenceNumberForGroup() {}

uint64_t ProcessGroupFarandole::getSequenceNumberForGroup() { return queue_->issued(); }

void ProcessGroupFarandole::setTimeout(std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) {
    throw InvalidArgument("the timeout of group '" + name() + "' cannot be " +
                              std::to_string(timeout.count()) + " ms.",
                          "a collective that waits for nobody cannot be one.",
                          "pass a timeout of at least one millisecond.");
  }
  timeout_.store(timeout, std::memory_order_relaxed);
  options_->timeout = timeout;
}

c10d::ErrorType ProcessGroupFarandole::getError() { return error_->load(); }

void ProcessGroupFarandole::abort() {
  if (const auto communicator = this->communicator()) communicator->abort("abort() was called");
}

void ProcessGroupFarandole::shutdown() {
  if (!queue_->in_creator()) return;
  const auto communicator = this->communicator();
  if (communicator && (queue_->busy() || transfers_->busy())) {
    communicator->abort("the group was shut down with operations pending");
  }
  queue_->close();
  transfers_->close();
  const std::lock_guard<std::mutex> lock(mutex_);
  communicator_.reset();
}

}  // namespace farandole
