// SPDX-License-Identifier: Apache-2.0
// What torch asks of the only accelerator of a process.
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/Exception.h>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/torch/allocators.h"
#include "support/simulated_device/torch/device_guard.h"
#include "support/simulated_device/torch/generator.h"

namespace farandole::sim {
namespace {

c10::impl::VirtualGuardImpl guard() { return {kSim}; }

class Hooks final : public at::PrivateUse1HooksInterface {
 public:
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex /*device*/) const override { return true; }

  c10::DeviceIndex deviceCount() const override { return kDeviceCount; }
  c10::DeviceIndex getCurrentDevice() const override { return guard().getDevice().index(); }
  void setCurrentDevice(c10::DeviceIndex device) const override {
    guard().setDevice({kSim, device});
  }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return guard().exchangeDevice({kSim, device}).index();
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return exchangeDevice(device);
  }

  at::Device getDeviceFromPtr(void* data) const override {
    const int device = device_of(data);
    TORCH_CHECK(device >= 0, "no memory of a simulated device is at ", data);
    return {kSim, static_cast<c10::DeviceIndex>(device)};
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  at::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t bytes) const override {
    resize_storage(*storage.unsafeGetStorageImpl(), bytes);
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return make_generator(device);
  }
};

const bool are_registered = [] {
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace
}  // namespace farandole::sim
