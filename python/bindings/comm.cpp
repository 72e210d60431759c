// SPDX-License-Identifier: Apache-2.0
#include <optional>
#include <string>
#include <utility>

#include "bindings.h"
#include "comm/lost_rank.h"
#include "comm/shm/crossed_waits.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/events.h"

namespace farandole::python {

namespace py = pybind11;

namespace {

/// comm::CalledFunction as a context manager.
struct CalledFunction {
  explicit CalledFunction(std::string of) : name(std::move(of)) {}

  std::string name;
  std::optional<comm::CalledFunction> scope;
};

void bind_called_function(py::module_& module) {
  py::class_<CalledFunction>(
      module, "CalledFunction",
      "Within it, errors about ranks that have ended name this function of the library.")
      .def(py::init<std::string>(), py::arg("name"))
      .def("__enter__", [](CalledFunction& called) { called.scope.emplace(called.name); })
      .def("__exit__",
           [](CalledFunction& called, const py::object& /*type*/, const py::object& /*error*/,
              const py::object& /*traceback*/) { called.scope.reset(); });
}

/// Of the Python program.
bool may_other_threads_call(int thread) {
  if (Py_IsInitialized() == 0) return true;
  const py::gil_scoped_acquire gil;
  try {
    const py::module_ threads = py::module_::import("farandole.program_threads");
    return threads.attr("may_others_call")(thread).cast<bool>();
  } catch (const py::error_already_set&) {
    return true;
  }
}

}  // namespace

void bind_comm(py::module_& module) {
  comm::shm::CrossedWaits::ask_about_threads(may_other_threads_call);
  bind_called_function(module);
  py::class_<comm::BackendInfo>(module, "BackendInfo", "One way to communicate.")
      .def_readonly("name", &comm::BackendInfo::name, "\"tcp\", \"shm\", \"mpi\" or \"nccl\".")
      .def_readonly("built", &comm::BackendInfo::built, "Whether this build holds it.")
      .def_readonly("detail", &comm::BackendInfo::detail, "What it serves, or how to get it.");
  module.def("backends", &comm::backends, "All backends that Farandole knows, built or not.");
  module.def(
      "obstacle_to",
      [](const std::string& backend) {
        return comm::obstacle_to(backend, Config::from_environment());
      },
      py::arg("backend"), NoGil(),
      "Why this process cannot use a backend, a sentence; empty if nothing is known to be against "
      "it. Opens the libraries that the backend needs.");

  py::class_<comm::Event>(module, "Event", "One finished collective as its calling thread saw it.")
      .def_property_readonly(
          "operation", [](const comm::Event& event) { return comm::name_of(event.operation); },
          "Its name, as \"all_reduce\".")
      .def_readonly("latest_rank", &comm::Event::latest_rank,
                    "The peer that was waited for last; -1: nobody.")
      .def_readonly("group", &comm::Event::group, "A small number for the group's name.")
      .def_readonly("sequence", &comm::Event::sequence, "Its number in the group, from 1.")
      .def_readonly("bytes", &comm::Event::bytes, "Of this rank's tensor.")
      .def_readonly("begin_ns", &comm::Event::begin_ns, "Start, steady clock.")
      .def_readonly("arrived_ns", &comm::Event::arrived_ns, "When the last peer had entered.")
      .def_readonly("end_ns", &comm::Event::end_ns, "End, steady clock.")
      .def("__str__", &comm::describe);
  module.def("recent_events", &comm::recent_events, py::arg("limit") = 16,
             py::call_guard<py::gil_scoped_release>(),
             "The newest collectives of all threads of this process, oldest first.");
}

}  // namespace farandole::python
