// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/staged_lane.h"

#include <ATen/Context.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "farandole/error.h"
#include "process_group/device/device_failure.h"
#include "process_group/device/stream_capture.h"

namespace farandole {
namespace {

constexpr std::chrono::seconds kGrace{2};

/// Of torch's allocator: nothing registers what is staged.
class PlainMemory final : public comm::DeviceMemory {
 public:
  PlainMemory(c10::DeviceType type, size_t bytes)
      : memory_(c10::GetAllocator(type)->allocate(bytes)), bytes_(bytes) {}

  void* data() const override { return memory_.get(); }
  size_t bytes() const override { return bytes_; }

 private:
  const c10::DataPtr memory_;
  const size_t bytes_;
};

/// Of an allocation on one rank.
enum class Outcome : uint8_t { kMade, kNoMemory, kDeviceFailed };

}  // namespace

StagedLane::StagedLane(Parts parts, const std::shared_ptr<comm::Communicator>& host,
                       RunInOrder run_in_order)
    : DeviceLane(std::move(parts)),
      host_(host),
      communicator_(std::make_shared<StagedCommunicator>(host, stream())),
      run_in_order_(std::move(run_in_order)),
      transfers_(std::make_shared<StagedTransfers>(communicator_)),
      callbacks_(this->parts().group) {}

StagedLane::~StagedLane() = default;

/// Its inputs are what the current stream was given by now.
std::shared_ptr<DeviceOperation> StagedLane::begin(const Call& call,
                                                   std::chrono::milliseconds timeout) {
  const c10::Stream caller =
      c10::impl::VirtualGuardImpl(stream().device_type()).getStream(stream().device());
  if (is_captured(caller)) {
    throw NotSupported("captured-staged",
                       std::string(call.operation.name) + " in " + own_position() +
                           " cannot be captured into a graph.",
                       "its tensors are staged through host memory, and a graph that runs again "
                       "does not run what the host does in between.",
                       "call it outside of the capture, or use NCCL: FARANDOLE_DEVICE_BACKEND=nccl "
                       "says what is missing.");
  }
  auto operation = std::make_shared<DeviceOperation>(call.operation.name, /*sequence=*/0, timeout,
                                                     stream(), parts().asks_for_times(),
                                                     /*captured=*/false);
  operation->note_inputs(caller);
  return operation;
}

c10::intrusive_ptr<c10d::Work> StagedLane::launch(Call& call, Body body,
                                                  std::chrono::milliseconds timeout) {
  const auto operation = begin(call, timeout);
  auto work = make_work(call, operation,
                        [host = host_](const std::string& reason) { host->abort(reason); });
  count(1);
  try {
    if (call.transfers) {
      launch_transfers(call, operation, timeout);
    } else {
      work->set_sequence(launch_collective(call, operation, std::move(body), timeout));
    }
  } catch (...) {  // nothing runs after the group's end
    count(-1);
    throw;
  }
  if (!call.async) work->wait();
  return work;
}

uint64_t StagedLane::launch_collective(const Call& call,
                                       const std::shared_ptr<DeviceOperation>& operation, Body body,
                                       std::chrono::milliseconds timeout) {
  comm::CollectiveOptions options{timeout, /*sleep_at_once=*/call.async};
  const auto self = std::static_pointer_cast<StagedLane>(shared_from_this());
  return run_in_order_(
      call.async, [self, operation, body = std::move(body), options](const Ended& ended) mutable {
        std::exception_ptr failure;
        try {
          self->run(*operation, body, options);
        } catch (...) {
          failure = std::current_exception();
        }
        ended();
        self->finish(operation, std::move(body), failure);
        operation->call_back();
      });
}

void StagedLane::run(DeviceOperation& operation, const Body& body,
                     const comm::CollectiveOptions& options) {
  const QueriesWhileOthersCapture allowed;
  const c10::StreamGuard on_stream(stream());  // copies run there, temporary tensors belong there
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  operation.await_inputs();
  body(*communicator_, options);
}

void StagedLane::launch_transfers(const Call& call,
                                  const std::shared_ptr<DeviceOperation>& operation,
                                  std::chrono::milliseconds timeout) {
  const auto batch = std::make_shared<StagedBatch>();
  batch->operation = operation;
  batch->transfers = call.transfers;
  batch->options.timeout = timeout;
  const auto self = std::static_pointer_cast<StagedLane>(shared_from_this());
  batch->on_end = [self, operation, transfers = call.transfers](const std::exception_ptr& failure) {
    self->finish(
        operation, [transfers](auto&, const auto&) {}, failure);
    self->call_back_elsewhere(operation);
  };
  if (call.async) callbacks_.start();  // call_back_elsewhere() cannot tell that it failed
  transfers_->add(batch);
  operation->set_driver([batch] { batch->wait_on_host(); });
}

/// `kept` holds the tensors, which the copies of results may still need. Callbacks come after it:
/// the operation is on the stream by then, and drain() does not wait for them.
void StagedLane::finish(const std::shared_ptr<DeviceOperation>& operation, Body kept,
                        const std::exception_ptr& met) {
  if (met) operation->fail(own_failure(met));
  operation->keep(std::move(kept));
  c10::OptionalDeviceGuard on_device;
  try {
    on_device.reset_device(stream().device());
    operation->end();
  } catch (const std::exception&) {
    operation->fail(own_failure(std::current_exception()));
  }
  operation->note_enqueued();
  watch(operation);
  count(-1);
}

/// The thread of messages must go on: a callback may wait for one.
void StagedLane::call_back_elsewhere(const std::shared_ptr<DeviceOperation>& operation) {
  if (!operation->has_callbacks()) return;
  try {
    callbacks_.push([operation] { operation->call_back(); });
  } catch (const std::exception&) {  // the group has ended: there is nothing to wait for
    operation->call_back();
  }
}

void StagedLane::count(int change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  on_the_way_ += change;
  if (on_the_way_ == 0) idle_.notify_all();
}

/// One of ours. If the device has failed, the other ranks, which wait for this one, are told.
std::exception_ptr StagedLane::own_failure(const std::exception_ptr& met) {
  const std::exception_ptr failure = as_own_error(met, own_position());
  if (failure != met) host_->abort(text_of(failure));
  parts().on_failure(failure);
  return failure;
}

std::shared_ptr<comm::DeviceMemory> StagedLane::allocate(size_t bytes, const c10::Stream& caller,
                                                         std::chrono::milliseconds timeout) {
  const QueriesWhileOthersCapture allowed;
  c10::OptionalStreamGuard on_stream;
  std::shared_ptr<comm::DeviceMemory> made;
  std::exception_ptr failure;
  Outcome outcome = Outcome::kMade;
  try {
    at::globalContext().lazyInitDevice(stream().device_type());
    on_stream.reset_stream(caller);
    made = std::make_shared<PlainMemory>(stream().device_type(), bytes);
  } catch (const c10::OutOfMemoryError&) {
    outcome = Outcome::kNoMemory;
  } catch (const std::exception&) {
    outcome = Outcome::kDeviceFailed;
    failure = std::current_exception();
  }
  comm::CollectiveOptions options;
  options.timeout = timeout;
  std::vector<Outcome> all(static_cast<size_t>(host_->world_size()));
  host_->all_gather(&outcome, all.data(), 1, comm::DataType::kUInt8, options);
  if (failure) std::rethrow_exception(failure);
  for (int rank = 0; rank < host_->world_size(); ++rank) {
    const Outcome its = all[static_cast<size_t>(rank)];
    if (its != Outcome::kMade) refuse_memory(bytes, rank, its == Outcome::kNoMemory);
  }
  return made;
}

/// On all ranks, but one whose own device has another error.
void StagedLane::refuse_memory(size_t bytes, int rank, bool is_full) const {
  const std::string whose = "the device of " + host_->topology().describe(rank);
  throw SystemError(
      "device-memory",
      "allocation in " + own_position() + " of " + std::to_string(bytes) + " bytes failed.",
      is_full ? "there was no memory left on " + whose + "."
              : whose + " has met another error, which that rank throws.",
      is_full ? "free memory of that device (torch.cuda.empty_cache()), or ask for less."
              : "look at the error of that rank.",
      host_->topology().fault_of({rank}));
}

bool StagedLane::look() {
  c10::OptionalDeviceGuard on_device;
  try {
    on_device.reset_device(stream().device());
    for (const auto& operation : pending().take_ended()) retire(*operation);
  } catch (const std::exception&) {  // the device has failed: it runs nothing any more
    const std::exception_ptr failure = own_failure(std::current_exception());
    for (const auto& operation : pending().take_all()) {
      operation->fail(failure);
      operation->let_go();
    }
  }
  return !pending().rest();
}

void StagedLane::abort(const std::string& reason) { host_->abort(reason); }

bool StagedLane::drain() {
  std::unique_lock<std::mutex> lock(mutex_);
  return idle_.wait_for(lock, kGrace, [this] { return on_the_way_ == 0; });
}

void StagedLane::end() {
  if (!drain()) {
    host_->abort("the group was shut down with operations pending on a device");
    drain();
  }
  transfers_->close(kGrace);
  callbacks_.close(kGrace);
  retire_within(kGrace);
  for (const auto& operation : pending().take_all()) operation->let_go();
}

}  // namespace farandole
