// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_lane.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>
#include <utility>

#include "farandole/error.h"
#include "log.h"
#include "process_group/device/device_work.h"

namespace farandole {

DeviceLane::DeviceLane(Parts parts)
    : parts_(std::move(parts)),
      stream_(c10::impl::VirtualGuardImpl(parts_.device.type())
                  .getStreamFromGlobalPool(parts_.device, /*isHighPriority=*/true)) {}

DeviceLane::~DeviceLane() = default;

void DeviceLane::check_device(c10::Device device) const {
  if (device == parts_.device) return;
  throw InvalidArgument(
      "second-device",
      own_position() + " got a tensor on " + device.str() + " after one on " + parts_.device.str() +
          ".",
      "a rank has one device in a group: peers know it by that device.",
      "start one process for each device, and call torch.accelerator.set_device_index("
      "local_rank) before tensors are made.");
}

std::string DeviceLane::own_position() const {
  return "group '" + parts_.group + "' on rank " + std::to_string(parts_.rank);
}

c10::intrusive_ptr<WorkFarandole> DeviceLane::make_work(
    const Call& call, const std::shared_ptr<DeviceOperation>& operation,
    WorkFarandole::Abort abort) const {
  auto work = c10::make_intrusive<DeviceWork>(
      WorkFarandole::Description{parts_.rank, call.operation.type, call.operation.name,
                                 parts_.group, call.outputs},
      operation, std::move(abort), call.peer);
  operation->set_completion_key(work->completion_key());
  return work;
}

void DeviceLane::watch(const std::shared_ptr<DeviceOperation>& operation) {
  if (pending_.add(operation)) DeviceWatchdog::of_process().watch(weak_from_this());
}

void DeviceLane::retire(DeviceOperation& operation) const {
  operation.note_ended();
  operation.let_go();
  if (operation.failure() || !operation.is_timed()) return;
  parts_.on_end(operation.completion_key(), operation.run_time());
}

void DeviceLane::retire_within(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  try {
    while (pending_.first()) {
      for (const auto& operation : pending_.take_ended()) retire(*operation);
      if (std::chrono::steady_clock::now() > deadline) return;
      if (pending_.first()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, "group '" + parts_.group + "' ends early: " + error.what());
  }
}

}  // namespace farandole
