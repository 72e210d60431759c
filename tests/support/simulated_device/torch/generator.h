// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>
#include <c10/core/Device.h>

#include <cstdint>

namespace farandole::sim {

// Random numbers of simulated devices. A kernel that draws numbers gets a generator of its own,
// which is seeded when it is launched, so that they do not depend on when kernels run.

at::Generator make_generator(c10::DeviceIndex device);
/// That of the device; of the current one for -1.
const at::Generator& default_generator(c10::DeviceIndex device);
/// Seeds the default generators of all devices.
void seed_all(uint64_t seed);
/// A generator of the CPU, for one kernel.
at::Generator generator_for_kernel(at::Generator generator);

}  // namespace farandole::sim
