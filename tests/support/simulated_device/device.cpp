// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/device.h"

#include <array>
#include <memory>
#include <mutex>
#include <vector>

#include "support/simulated_device/errors.h"

namespace farandole::sim {
namespace {

struct Device {
  std::mutex mutex;
  // All below: guarded by mutex.
  std::vector<std::unique_ptr<Stream>> streams;  ///< by id
  std::string failure;                           ///< empty: none
};

Stream& add_stream(Device& to, int device) {
  const auto id = static_cast<int64_t>(to.streams.size());
  to.streams.push_back(std::make_unique<Stream>(device, id));
  return *to.streams.back();
}

Device& at(int device) {
  using Devices = std::array<Device, kDeviceCount>;
  static auto* devices = [] {  // threads of streams may use them while the process ends
    auto* made = new Devices;
    for (int each = 0; each < kDeviceCount; ++each) {
      add_stream((*made)[static_cast<size_t>(each)], each);
    }
    return made;
  }();
  return devices->at(static_cast<size_t>(device));
}

thread_local int current = 0;

}  // namespace

int current_device() { return current; }

void set_current_device(int device) { current = device; }

Stream& stream(int device, int64_t id) {
  Device& of = at(device);
  const std::lock_guard<std::mutex> lock(of.mutex);
  return *of.streams.at(static_cast<size_t>(id));
}

Stream& new_stream(int device) {
  Device& of = at(device);
  const std::lock_guard<std::mutex> lock(of.mutex);
  return add_stream(of, device);
}

std::vector<Stream*> streams_of(int device) {
  Device& of = at(device);
  std::vector<Stream*> streams;
  const std::lock_guard<std::mutex> lock(of.mutex);
  for (const auto& each : of.streams) streams.push_back(each.get());
  return streams;
}

void synchronize_device(int device) {
  for (Stream* each : streams_of(device)) each->synchronize();
}

void fail_device(int device, const std::string& reason) {
  Device& failed = at(device);
  const std::lock_guard<std::mutex> lock(failed.mutex);
  if (failed.failure.empty()) {
    failed.failure = "sim:" + std::to_string(device) + " has failed.\nwhy: " + reason +
                     "\nfix: restart the process; a failed device runs no more kernels.";
  }
}

void reset_device(int device) {
  Device& failed = at(device);
  const std::lock_guard<std::mutex> lock(failed.mutex);
  failed.failure.clear();
}

bool has_failed(int device) {
  Device& asked = at(device);
  const std::lock_guard<std::mutex> lock(asked.mutex);
  return !asked.failure.empty();
}

void check_device(int device) {
  Device& asked = at(device);
  const std::lock_guard<std::mutex> lock(asked.mutex);
  if (!asked.failure.empty()) throw DeviceError(asked.failure);
}

}  // namespace farandole::sim
