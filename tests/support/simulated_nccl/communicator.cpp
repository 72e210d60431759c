// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/communicator.h"

#include <signal.h>

#include <exception>
#include <utility>

#include "support/simulated_nccl/kernel.h"
#include "support/simulated_nccl/misuse.h"
#include "support/simulated_nccl/wait.h"

namespace farandole::sim::nccl {

Communicator::Communicator(Identity identity)
    : identity_(std::move(identity)), region_(open_region(identity_.id)) {}

std::string Communicator::name() const {
  return "rank " + std::to_string(rank()) + " of " + std::to_string(world_size());
}

void Communicator::join(const std::atomic<bool>& cancelled) {
  int given = 0;
  if (!region_->world_size.compare_exchange_strong(given, world_size()) && given != world_size()) {
    publish(name() + " joins a communicator of " + std::to_string(given) +
            " ranks.\nwhy: another rank gave that number first.\nfix: give the same number of "
            "ranks to ncclCommInitRankConfig everywhere.");
  }
  if (region_->ranks[rank()].present.fetch_add(1) != 0) {
    publish(name() +
            " comes twice.\nwhy: two calls of ncclCommInitRankConfig have this rank and this "
            "ncclUniqueId.\nfix: give each rank its own number, and each communicator its own id.");
  }
  region_->joined.fetch_add(1);
  wait_until([&] { return region_->joined.load() >= world_size(); }, cancelled, *region_);
  if (rank() == 0) remove_name(identity_.id);
}

ncclResult_t Communicator::begin(std::function<void()> work, std::function<void()> finish) {
  if (identity_.blocking) {
    if (work) work();
    if (finish) finish();
    return ncclSuccess;
  }
  const auto contained = [self = shared_from_this()](std::function<void()> part) {
    return [self, part = std::move(part)] { self->contain(part); };
  };
  call_.begin(work ? contained(std::move(work)) : std::function<void()>(),
              finish ? contained(std::move(finish)) : std::function<void()>());
  return ncclInProgress;
}

ncclResult_t Communicator::poll() {
  const bool is_done = call_.poll();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != ncclSuccess) return error_;
  return is_done ? ncclSuccess : ncclInProgress;
}

void Communicator::check_usable(const std::string& function) const {
  if (call_.exists()) {
    throw Misuse(ncclInvalidUsage,
                 name() + " calls " + function +
                     " too early.\nwhy: its last call on this communicator is still in progress.\n"
                     "fix: call ncclCommGetAsyncError until it gives no ncclInProgress.");
  }
  if (finalized_.load()) {
    throw Misuse(ncclInvalidUsage, name() + " calls " + function +
                                       " on a communicator that is gone.\nwhy: ncclCommFinalize "
                                       "was called.\nfix: use a communicator only before.");
  }
  if (is_stopped()) {
    throw Misuse(ncclInvalidUsage, name() + " calls " + function +
                                       " on a communicator that was shrunk with NCCL_SHRINK_ABORT."
                                       "\nwhy: its operations were ended.\nfix: use the new one.");
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != ncclSuccess) throw Failure(error_, error_text_);
}

std::string Communicator::error_text() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return error_text_;
}

void Communicator::launch(const std::vector<Operation>& operations) {
  Stream& stream = *operations.front().stream;
  std::vector<Access> accesses;
  for (const Operation& each : operations) {
    stream.wait(each.stream->tail());
    for (const Access& access : accesses_of(each, identity_.member)) accesses.push_back(access);
  }
  const char* kernel =
      operations.size() == 1 ? name_of(operations.front().signature.function) : "ncclGroup";
  const auto run = [self = shared_from_this(), operations] { self->run(operations); };
  stream.launch(kernel, accesses, run, order_);
  const Event end = stream.tail();
  for (const Operation& each : operations) each.stream->wait(end);
}

std::vector<HostCall> Communicator::exchange(HostCall mine) {
  RankEntry& own = region_->ranks[rank()];
  const uint64_t number = ++host_calls_;
  own.host_call[0] = mine.function;
  own.host_call[1] = mine.first;
  own.host_call[2] = mine.second;
  own.host_arrived.store(number);
  std::vector<HostCall> all;
  for (int each = 0; each < world_size(); ++each) {
    const RankEntry& theirs = region_->ranks[each];
    const std::string peer = "rank " + std::to_string(each);
    const auto is_there = [&] {
      const bool left = theirs.left.load() != 0;
      const bool arrived = theirs.host_arrived.load() >= number;
      if (left && !arrived) {
        publish(name() + " waits for " + peer + " in vain.\nwhy: " + peer +
                " has finalized its communicator.\nfix: make the same calls on all ranks.");
      }
      return arrived;
    };
    wait_until(is_there, aborted_, *region_);
    const int64_t* call = theirs.host_call;
    all.push_back({static_cast<HostCall::Function>(call[0]), call[1], call[2]});
    if (all.back().function != mine.function) {
      publish(name() + " and " + peer +
              " make different calls.\nwhy: one is in ncclCommSplit, the other in "
              "ncclCommWindowRegister.\nfix: make the same calls in the same order on all ranks.");
    }
  }
  own.host_done.store(number);  // nobody changes host_call before all have read it
  for (int each = 0; each < world_size(); ++each) {
    wait_until([&] { return region_->ranks[each].host_done.load() >= number; }, aborted_, *region_);
  }
  return all;
}

std::string Communicator::child_id(const std::string& kind) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return identity_.id + "." + kind + "." + std::to_string(++children_[kind]);
}

ncclResult_t Communicator::begin_finalize() {
  check_usable("ncclCommFinalize");
  finalized_.store(true);
  return begin([this] { finalize(); }, nullptr);
}

void Communicator::end() {
  if (order_.use_count() > 1) {
    throw Misuse(ncclInvalidUsage,
                 name() +
                     " destroys a communicator that a graph holds.\nwhy: NCCL waits for the end of "
                     "graphs that have kernels of it, for ever.\nfix: let go of graphs before.");
  }
  if (is_stopped()) return;
  const bool was_finalized = finalized_.exchange(true);
  if (poll() == ncclSuccess) {
    if (!was_finalized) finalize();
    return;
  }
  throw Misuse(ncclInvalidUsage, name() +
                                     " destroys a communicator that has failed or has a call in "
                                     "progress.\nwhy: its state is " +
                                     ncclGetErrorString(poll()) +
                                     ".\nfix: wait until the call is done, or abort it.");
}

void Communicator::finalize() {
  order_->await_last();
  region_->ranks[rank()].left.store(1);
  for (int each = 0; each < world_size(); ++each) {
    wait_until([&] { return region_->ranks[each].left.load() != 0; }, aborted_, *region_);
  }
}

void Communicator::stop() { stopped_.store(true); }

void Communicator::abort() {
  stopped_.store(true);
  aborted_.store(true);
  call_.drop();
  remove_name(identity_.id);  // the process may end before its threads have seen it
}

ncclRedOp_t Communicator::add_operator(ncclDataType_t dtype, const Factor& factor) {
  const std::lock_guard<std::mutex> lock(mutex_);
  operators_[next_operator_] = {dtype, factor};
  return static_cast<ncclRedOp_t>(next_operator_++);
}

Factor Communicator::factor_of(ncclRedOp_t op, ncclDataType_t dtype) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = operators_.find(op);
  if (found != operators_.end() && found->second.dtype == dtype) return found->second.factor;
  throw Misuse(ncclInvalidArgument,
               name() + " uses reduction operator " + std::to_string(op) +
                   ".\nwhy: this communicator has none of that number for that type.\nfix: make "
                   "it with ncclRedOpCreatePreMulSum, and destroy it after its last use.");
}

void Communicator::remove_operator(ncclRedOp_t op) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (operators_.erase(op) == 1) return;
  throw Misuse(ncclInvalidArgument, name() + " destroys reduction operator " + std::to_string(op) +
                                        ".\nwhy: this communicator has none of that number.\n"
                                        "fix: destroy an operator once.");
}

void Communicator::run(const std::vector<Operation>& operations) {
  try {
    for (const Operation& each : operations) {
      if (each.injection) suffer(*each.injection);
    }
    run_kernel(operations, identity_.member, *region_,
               [this](const std::function<bool()>& done) { wait_until(done, stopped_, *region_); });
  } catch (const Aborted&) {
  } catch (const Misuse& misuse) {
    region_->publish_fault(misuse.what());
    report(misuse.what());
    fail(misuse.result, misuse.what());
    throw;
  }
}

void Communicator::suffer(const Injection& injection) {
  if (injection.fault == ncclSimulatedDeath) ::raise(SIGKILL);
  if (injection.fault == ncclSimulatedAsyncError) {
    fail(injection.result, name() + " has an injected error in " + injection.function + ".");
  }
  wait_until([] { return false; }, stopped_, *region_);
}

void Communicator::fail(ncclResult_t result, const std::string& text) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (error_ != ncclSuccess) return;
  error_ = result;
  error_text_ = text;
}

void Communicator::contain(const std::function<void()>& part) {
  try {
    part();
  } catch (const Aborted&) {
  } catch (const Misuse& misuse) {
    report(misuse.what());
    fail(misuse.result, misuse.what());
  } catch (const std::exception& error) {
    fail(ncclUnhandledCudaError, error.what());
  }
}

void Communicator::publish(const std::string& text) {
  region_->publish_fault(text);
  remove_name(identity_.id);
  throw Misuse(ncclInvalidUsage, text);
}

}  // namespace farandole::sim::nccl
