// SPDX-License-Identifier: Apache-2.0
// What GroupCommunicators has for accelerators.
#include <ATen/record_function.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "comm/shm/system/reason.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/device_communicator.h"
#include "farandole/error.h"
#include "log.h"
#include "process_group/device/accelerators.h"
#include "process_group/device/direct_lane.h"
#include "process_group/device/lane_choice.h"
#include "process_group/device/staged_lane.h"
#include "process_group/device/stream_capture.h"
#include "process_group/device/torch_variables.h"
#include "process_group/group_communicators.h"
#include "process_group/store_adapter.h"

namespace farandole {

void DevicePoints::add(const c10::Stream& stream) {
  events_.emplace_back(stream.device_type());
  events_.back().record(stream);
}

/// Events must not end while another device is current.
void DevicePoints::wait() {
  const QueriesWhileOthersCapture allowed;
  for (c10::Event& each : events_) {
    const c10::OptionalDeviceGuard on_device(each.device());
    each.synchronize();
  }
  for (const c10::Stream& each : streams_) {
    const c10::DeviceGuard on_device(each.device());
    each.synchronize();
  }
  if (events_.empty()) return;
  const c10::OptionalDeviceGuard on_device(events_.front().device());
  events_.clear();
}

/// What lanes are made with later.
void GroupCommunicators::remember_formation(const c10::intrusive_ptr<c10d::Store>& store,
                                            const comm::CommunicatorOptions& options) {
  store_ = store;
  device_options_ = options;
  device_options_.control = host_;
}

/// Null before the first call on a device of `type`.
GroupCommunicators::Lane GroupCommunicators::lane(c10::DeviceType type) const {
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  return lanes_[static_cast<size_t>(type)];
}

std::vector<GroupCommunicators::Lane> GroupCommunicators::lanes() const {
  std::vector<Lane> present;
  const std::lock_guard<std::mutex> lock(lanes_mutex_);
  for (const c10::DeviceType type : kAccelerators) {
    if (const Lane& each = lanes_[static_cast<size_t>(type)]) present.push_back(each);
  }
  return present;
}

/// Null before the first call on one of its type. Throws InvalidArgument for a second device.
GroupCommunicators::Lane GroupCommunicators::lane_on(c10::Device device) const {
  Lane found = lane(device.type());
  if (found) found->check_device(device);
  return found;
}

std::shared_ptr<comm::Communicator> GroupCommunicators::of(c10::DeviceType type) const {
  if (type == c10::DeviceType::CPU) return host_;
  const Lane found = lane(type);
  return found ? found->communicator() : nullptr;
}

/// A lane shares no owner with this object, so that it ends with its last Work. Collective.
GroupCommunicators::Lane GroupCommunicators::make_lane(c10::Device device) {
  warn_of_torch_variables();
  const c10::DeviceGuard on_device(device);
  const LaneChoice choice = choose_lane(*host_, device, device_options_.config);
  const std::weak_ptr<GroupCommunicators> self = weak_from_this();
  DeviceLane::Parts parts{group(), rank(), device, {}, {}, {}};
  parts.on_failure = [self](const std::exception_ptr& failure) {
    if (const auto alive = self.lock()) alive->note_failure(failure);
  };
  parts.asks_for_times = [hooks = parts_.hooks] { return !hooks->completion.empty(); };
  parts.on_end = [hooks = parts_.hooks](uint64_t key, auto milliseconds) {
    hooks->completion.call(key, static_cast<float>(milliseconds.count()));
  };
  if (!choice.is_staged) return make_direct_lane(std::move(parts));
  if (rank() == 0) {
    log(LogLevel::kInfo, "group '" + group() + "': tensors on " +
                             c10::DeviceTypeName(device.type(), /*lower_case=*/true) +
                             " are staged through pinned host memory: " + choice.why);
  }
  return make_staged_lane(std::move(parts));
}

GroupCommunicators::Lane GroupCommunicators::make_direct_lane(DeviceLane::Parts parts) {
  StoreAdapter adapter(store_);
  auto communicator = std::dynamic_pointer_cast<comm::DeviceCommunicator>(
      std::shared_ptr<comm::Communicator>(comm::make_communicator(
          comm::backend_for(comm::MemoryKind::kDevice), adapter, device_options_)));
  auto board = std::make_unique<ProgressBoard>(*host_);
  return std::make_shared<DirectLane>(std::move(parts), std::move(communicator), std::move(board));
}

GroupCommunicators::Lane GroupCommunicators::make_staged_lane(DeviceLane::Parts parts) {
  const std::weak_ptr<GroupCommunicators> weak = weak_from_this();
  return std::make_shared<StagedLane>(
      std::move(parts), host_,
      [weak](bool async, std::function<void(const std::function<void()>&)> task) {
        const auto self = weak.lock();  // this group calls it
        if (!async) {
          if (const uint64_t sequence = self->collectives_.try_begin()) {
            const CollectiveQueue::Turn turn(self->collectives_);
            task([] {});
            return sequence;
          }
        }
        return self->push_collective([self, task = std::move(task)] {
          task([&] { self->collectives_.collective_ended(); });
        });
      });
}

/// A collective on host memory of its own, because it meets through the host's communicator.
void GroupCommunicators::connect(c10::Device device) {
  static constexpr Operation kOperation{c10d::OpType::UNKNOWN, "connect_device",
                                        "farandole:connect_device"};
  if (lane_on(device)) return;
  launch({kOperation, {}, /*async=*/false, kNoTimeout, /*cost=*/{}},
         [this, device](comm::Communicator& host, const auto&) {
           if (lane_on(device)) return;  // another thread has made it meanwhile
           const auto give_up = [&](const std::exception& error) {  // the others wait for this rank
             host.abort("rank " + std::to_string(rank()) + " could not use " + device.str() + ": " +
                        comm::shm::reason_of(error.what()));
           };
           try {
             DeviceWatchdog::of_process().start();
           } catch (const std::exception& error) {
             give_up(error);
             throw;
           }
           try {
             const Lane made = make_lane(device);
             const std::lock_guard<std::mutex> lock(lanes_mutex_);
             lanes_[static_cast<size_t>(device.type())] = made;
           } catch (const Error&) {
             throw;                                 // all ranks get one
           } catch (const std::exception& error) {  // the device's
             give_up(error);
             throw;
           }
         });
}

std::shared_ptr<comm::DeviceMemory> GroupCommunicators::allocate(c10::Device device, size_t bytes) {
  static constexpr Operation kOperation{c10d::OpType::UNKNOWN, "allocate", "farandole:allocate"};
  const c10::Stream caller = c10::impl::VirtualGuardImpl(device.type()).getStream(device);
  if (is_captured(caller)) {
    throw NotSupported("captured-memory",
                       "group '" + group() + "' on rank " + std::to_string(rank()) +
                           " cannot allocate memory for collectives now.",
                       "the current stream is captured into a graph, and the memory is not from "
                       "torch's allocator, whose memory alone a graph may hold.",
                       "allocate it before the capture; DistributedDataParallel does in its first "
                       "backward, so run a step before.");
  }
  connect(device);
  std::shared_ptr<comm::DeviceMemory> memory;
  // Ranks agree on it through the host's communicator, maybe on another thread.
  launch({kOperation, {}, /*async=*/false, kNoTimeout, /*cost=*/{}},
         [&](comm::Communicator&, const comm::CollectiveOptions& options) {
           memory = lane_on(device)->allocate(bytes, caller, options.timeout);
         });
  return memory;
}

GroupCommunicators::Work GroupCommunicators::launch_on_device(Call& call, Body body) {
  connect(call.device);
  at::RecordFunction profile(at::RecordScope::USER_SCOPE);
  if (C10_UNLIKELY(profile.isActive())) profile.before(call.operation.profiler_title);
  const Lane lane = lane_on(call.device);
  if (!lane->is_staged() && call.peer < 0) call.sequence = collectives_.number_elsewhere();
  try {
    return lane->launch(call, std::move(body),
                        call.timeout > kNoTimeout ? call.timeout : default_timeout_);
  } catch (...) {
    note_failure(std::current_exception());
    throw;
  }
}

DevicePoints GroupCommunicators::points_on_devices(std::optional<c10::Device> device) const {
  DevicePoints points;
  const auto add = [&](const c10::Stream& stream) {
    if (is_captured(stream)) {
      throw NotSupported("captured-barrier",
                         "barrier in group '" + group() + "' on rank " + std::to_string(rank()) +
                             " cannot be captured into a graph.",
                         "it makes the host wait for what the device was given before.",
                         "call it before or after the capture.");
    }
    points.add(stream);
  };
  const auto add_current = [&](c10::Device of) {
    add(c10::impl::VirtualGuardImpl(of.type()).getStream(of));
  };
  for (const Lane& each : lanes()) {
    const c10::Stream& stream = each->stream();
    if (each->is_staged()) {
      points.add_later(stream);
    } else {
      add(stream);
    }
    add_current(stream.device());
    if (device && device->type() == stream.device_type()) device.reset();
  }
  if (device && can_serve(device->type())) add_current(*device);
  return points;
}

}  // namespace farandole
