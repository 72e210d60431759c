// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/torch/generator.h"

#include <ATen/CPUGeneratorImpl.h>

#include <mutex>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::sim {
namespace {

struct DeviceGenerator final : at::CPUGeneratorImpl {
  explicit DeviceGenerator(c10::DeviceIndex device) {
    device_ = c10::Device(kSim, device);
    key_set_ = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1);
  }
};

c10::DeviceIndex index_or_current(c10::DeviceIndex device) {
  return device < 0 ? static_cast<c10::DeviceIndex>(current_device()) : device;
}

}  // namespace

at::Generator make_generator(c10::DeviceIndex device) {
  return at::make_generator<DeviceGenerator>(index_or_current(device));
}

const at::Generator& default_generator(c10::DeviceIndex device) {
  static const auto* all = [] {
    auto* made = new std::vector<at::Generator>;
    for (c10::DeviceIndex each = 0; each < kDeviceCount; ++each) {
      made->push_back(make_generator(each));
    }
    return made;
  }();
  return all->at(static_cast<size_t>(index_or_current(device)));
}

void seed_all(uint64_t seed) {
  for (c10::DeviceIndex device = 0; device < kDeviceCount; ++device) {
    at::Generator generator = default_generator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    generator.set_current_seed(seed);
  }
}

at::Generator generator_for_kernel(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  auto* impl = static_cast<at::CPUGeneratorImpl*>(generator.unsafeGetGeneratorImpl());
  return at::detail::createCPUGenerator(impl->random64());
}

}  // namespace farandole::sim
