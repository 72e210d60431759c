// SPDX-License-Identifier: Apache-2.0
// torch.ops.farandole_sim, for tests in Python.
#include <torch/library.h>

#include <cstdint>
#include <string>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/schedule.h"
#include "support/simulated_device/seeded_fault.h"
#include "support/simulated_device/torch/boxed_kernel.h"
#include "support/simulated_device/torch/generator.h"

namespace farandole::sim {
namespace {

TORCH_LIBRARY(farandole_sim, m) {
  m.def("device_count", [] { return int64_t{kDeviceCount}; });
  m.def("set_schedule", [](int64_t schedule) { set_schedule(static_cast<Schedule>(schedule)); });
  m.def("throw_races", [](bool throws) {
    race_detector().set_response(throws ? RaceDetector::Response::kThrow
                                        : RaceDetector::Response::kReport);
  });
  m.def("take_reports", [] { return race_detector().take_reports(); });
  m.def("take_waiting_operators", take_waiting_operators);
  m.def("take_stream_waits", take_stream_waits);
  m.def("leave_out_wait_after",
        [](int64_t others) { leave_out_wait_after(static_cast<size_t>(others)); });
  m.def("host_waits", [] { return static_cast<int64_t>(host_waits()); });
  m.def("seed_all", [](int64_t seed) { seed_all(static_cast<uint64_t>(seed)); });
  m.def("fail", [](int64_t device, const std::string& reason) {
    fail_device(static_cast<int>(device), reason);
  });
  m.def("reset", [](int64_t device) { reset_device(static_cast<int>(device)); });
}

}  // namespace
}  // namespace farandole::sim
