// SPDX-License-Identifier: Apache-2.0
// torch.ops.farandole_sim and torch.classes.farandole_sim, for tests in Python.
#include <torch/custom_class.h>
#include <torch/library.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "support/simulated_device/device.h"
#include "support/simulated_device/graph.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/schedule.h"
#include "support/simulated_device/seeded_fault.h"
#include "support/simulated_device/torch/boxed_kernel.h"
#include "support/simulated_device/torch/device_guard.h"
#include "support/simulated_device/torch/generator.h"

namespace farandole::sim {
namespace {

Stream& current() { return current_stream(static_cast<c10::DeviceIndex>(current_device())); }

/// As torch's CUDAGraph, on the current stream of the current device.
struct CapturedGraph : torch::CustomClassHolder {
  void begin() { current().begin_capture(); }
  void end() { graph = current().end_capture(); }
  void replay() { graph->replay(current()); }

  std::shared_ptr<Graph> graph;
};

TORCH_LIBRARY(farandole_sim, m) {
  m.class_<CapturedGraph>("Graph")
      .def(torch::init<>())
      .def("begin", [](const c10::intrusive_ptr<CapturedGraph>& self) { self->begin(); })
      .def("end", [](const c10::intrusive_ptr<CapturedGraph>& self) { self->end(); })
      .def("replay", [](const c10::intrusive_ptr<CapturedGraph>& self) { self->replay(); });
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
