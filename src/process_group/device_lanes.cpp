// SPDX-License-Identifier: Apache-2.0
// What GroupCommunicators has for accelerators.
#include <ATen/record_function.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "farandole/comm/backends.h"
#include "farandole/comm/device_communicator.h"
#include "farandole/error.h"
#include "process_group/device/accelerators.h"
#include "process_group/device/stream_capture.h"
#include "process_group/group_communicators.h"
#include "process_group/store_adapter.h"

namespace farandole {

/// A lane for each type of device that this build serves. They share no owner with this object, so
/// that it ends with its last Work.
void GroupCommunicators::add_lanes(const c10::intrusive_ptr<c10d::Store>& store,
                                   const comm::CommunicatorOptions& options) {
  comm::CommunicatorOptions device_options = options;
  device_options.control = host_;
  for (const c10::DeviceType type : kAccelerators) {
    if (!can_serve(type)) continue;
    DeviceLane::Parts parts;
    parts.type = type;
    parts.group = group();
    parts.rank = rank();
    parts.form = [store, device_options] {
      StoreAdapter adapter(store);
      return std::dynamic_pointer_cast<comm::DeviceCommunicator>(
          std::shared_ptr<comm::Communicator>(comm::make_communicator(
              comm::backend_for(comm::MemoryKind::kDevice), adapter, device_options)));
    };
    parts.make_board = [host = host_] { return std::make_unique<ProgressBoard>(*host); };
    const std::weak_ptr<GroupCommunicators> self = weak_from_this();
    parts.on_failure = [self](const std::exception_ptr& failure) {
      if (const auto alive = self.lock()) alive->note_failure(failure);
    };
    parts.asks_for_times = [hooks = parts_.hooks] { return !hooks->completion.empty(); };
    parts.on_end = [hooks = parts_.hooks](uint64_t key, auto milliseconds) {
      hooks->completion.call(key, static_cast<float>(milliseconds.count()));
    };
    lanes_[static_cast<size_t>(type)] = std::make_shared<DeviceLane>(std::move(parts));
  }
}

std::shared_ptr<comm::Communicator> GroupCommunicators::of(c10::DeviceType type) const {
  if (type == c10::DeviceType::CPU) return host_;
  const auto& lane = lanes_[static_cast<size_t>(type)];
  return lane ? lane->communicator() : nullptr;
}

/// check_tensor() has admitted `device`, so there is one.
DeviceLane& GroupCommunicators::lane(c10::Device device) const {
  return *lanes_[static_cast<size_t>(device.type())];
}

/// A collective on host memory of its own, because it meets through the host's communicator.
void GroupCommunicators::connect(c10::Device device) {
  static constexpr Operation kOperation{c10d::OpType::UNKNOWN, "connect_device",
                                        "farandole:connect_device"};
  if (lane(device).is_connected(device)) return;
  launch({kOperation, {}, /*async=*/false, kNoTimeout, /*cost=*/{}},
         [this, device](comm::Communicator& host, const auto&) {
           try {
             lane(device).connect(device);
           } catch (const Error&) {
             throw;                                 // all ranks get one
           } catch (const std::exception& error) {  // the device's: the others wait for this rank
             host.abort("rank " + std::to_string(rank()) + " could not use " + device.str() + ": " +
                        error.what());
             throw;
           }
         });
}

std::shared_ptr<comm::DeviceMemory> GroupCommunicators::allocate(c10::Device device, size_t bytes) {
  static constexpr Operation kOperation{c10d::OpType::UNKNOWN, "allocate", "farandole:allocate"};
  connect(device);
  std::shared_ptr<comm::DeviceMemory> memory;
  // Ranks agree on it through the host's communicator.
  launch({kOperation, {}, /*async=*/false, kNoTimeout, /*cost=*/{}},
         [&](comm::Communicator&, const comm::CollectiveOptions& options) {
           memory = lane(device).allocate(bytes, options.timeout);
         });
  return memory;
}

GroupCommunicators::Work GroupCommunicators::launch_on_device(Call& call, Body body) {
  connect(call.device);
  at::RecordFunction profile(at::RecordScope::USER_SCOPE);
  if (C10_UNLIKELY(profile.isActive())) profile.before(call.operation.profiler_title);
  const uint64_t sequence = call.peer < 0 ? collectives_.number_elsewhere() : 0;
  try {
    return lane(call.device)
        .launch(call, std::move(body), sequence,
                call.timeout > kNoTimeout ? call.timeout : default_timeout_);
  } catch (...) {
    note_failure(std::current_exception());
    throw;
  }
}

std::vector<c10::Event> GroupCommunicators::points_on_devices(
    std::optional<c10::Device> device) const {
  std::vector<c10::Event> points;
  const auto add = [&points](const c10::Stream& stream) {
    points.emplace_back(stream.device_type());
    points.back().record(stream);
  };
  const auto add_current = [&](c10::Device of) {
    const c10::Stream current = c10::impl::VirtualGuardImpl(of.type()).getStream(of);
    if (is_captured(current)) {
      throw NotSupported("captured-barrier",
                         "barrier in group '" + group() + "' on rank " + std::to_string(rank()) +
                             " cannot be captured into a graph.",
                         "it makes the host wait for what the device was given before.",
                         "call it before or after the capture.");
    }
    add(current);
  };
  for (const c10::DeviceType type : kAccelerators) {
    const auto& each = lanes_[static_cast<size_t>(type)];
    const auto stream = each ? each->stream() : std::nullopt;
    if (!stream) continue;
    add(*stream);
    add_current(stream->device());
    if (device && device->type() == stream->device_type()) device.reset();
  }
  if (device && can_serve(device->type())) add_current(*device);
  return points;
}

}  // namespace farandole
