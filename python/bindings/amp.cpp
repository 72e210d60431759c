// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <optional>
#include <utility>
#include <vector>

#include "bindings.h"
#include "farandole/amp/grad_scaler.h"
#include "farandole/optim/sharded_optimizer.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

ScaledOptimizer scaled(uintptr_t id, std::vector<at::Tensor> parameters, ShardedOptimizer* engine) {
  return {reinterpret_cast<const void*>(id), std::move(parameters), engine};
}

void bind_scaler_state(py::module_& module) {
  py::class_<GradScalerState>(module, "GradScalerState", "What a checkpoint has of a GradScaler.")
      .def(py::init([](double scale, double growth_factor, double backoff_factor,
                       int64_t growth_interval, int64_t growth_tracker) {
             return GradScalerState{scale, growth_factor, backoff_factor, growth_interval,
                                    growth_tracker};
           }),
           py::arg("scale"), py::arg("growth_factor"), py::arg("backoff_factor"),
           py::arg("growth_interval"), py::arg("growth_tracker"), "Of these numbers.")
      .def_readonly("scale", &GradScalerState::scale, "On the loss.")
      .def_readonly("growth_factor", &GradScalerState::growth_factor, "On the scale.")
      .def_readonly("backoff_factor", &GradScalerState::backoff_factor, "On the scale.")
      .def_readonly("growth_interval", &GradScalerState::growth_interval, "Steps.")
      .def_readonly("growth_tracker", &GradScalerState::growth_tracker,
                    "Steps without Inf or NaN since the scale changed.");
}

void bind_scaler(py::module_& module) {
  py::class_<GradScaler>(module, "GradScaler", "Loss scaling that all ranks agree on.")
      .def(py::init([](double init_scale, double growth_factor, double backoff_factor,
                       int64_t growth_interval, bool enabled) {
             return GradScaler(
                 {init_scale, growth_factor, backoff_factor, growth_interval, enabled});
           }),
           py::arg("init_scale"), py::arg("growth_factor"), py::arg("backoff_factor"),
           py::arg("growth_interval"), py::arg("enabled"), "As torch's.")
      .def("scale", py::overload_cast<const at::Tensor&>(&GradScaler::scale), py::arg("output"),
           NoGil(), "The output times the scale.")
      .def(
          "unscale_",
          [](GradScaler& self, uintptr_t id, std::vector<at::Tensor> parameters,
             ShardedOptimizer* engine) {
            self.unscale_(scaled(id, std::move(parameters), engine));
          },
          py::arg("id"), py::arg("parameters"), py::arg("engine"), NoGil(),
          "Divide gradients. Collective.")
      .def(
          "begin_step",
          [](GradScaler& self, uintptr_t id, std::vector<at::Tensor> parameters,
             ShardedOptimizer* engine) {
            return self.begin_step(scaled(id, std::move(parameters), engine));
          },
          py::arg("id"), py::arg("parameters"), py::arg("engine"), NoGil(),
          "Whether to step the optimizer. Collective.")
      .def(
          "end_step",
          [](GradScaler& self, uintptr_t id) {
            return self.end_step(reinterpret_cast<const void*>(id));
          },
          py::arg("id"), "Whether the step was taken.")
      .def(
          "abandon_step",
          [](GradScaler& self, uintptr_t id) {
            self.abandon_step(reinterpret_cast<const void*>(id));
          },
          py::arg("id"), "Instead of it: the optimizer raised.")
      .def("update", &GradScaler::update, py::arg("new_scale") = py::none(), NoGil(),
           "Lower or raise the scale, or set it.")
      .def("get_scale", &GradScaler::get_scale, "1 if it is not enabled.")
      .def_property("growth_factor", &GradScaler::get_growth_factor, &GradScaler::set_growth_factor,
                    "On the scale.")
      .def_property("backoff_factor", &GradScaler::get_backoff_factor,
                    &GradScaler::set_backoff_factor, "On the scale.")
      .def_property("growth_interval", &GradScaler::get_growth_interval,
                    &GradScaler::set_growth_interval, "Steps.")
      .def_property("state", &GradScaler::state, &GradScaler::load_state, "For a checkpoint.")
      .def_property_readonly("is_between_steps", &GradScaler::is_between_steps,
                             "Whether nothing is open until update().");
}

}  // namespace

void bind_amp(py::module_& module) {
  bind_scaler_state(module);
  bind_scaler(module);
}

}  // namespace farandole::python
