// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <string>

#include "bindings.h"
#include "farandole/comm/event_stream.h"
#include "farandole/profile/annotation.h"
#include "farandole/profile/recorder.h"
#include "profile/range_observer.h"

namespace farandole::python {
namespace {

namespace py = pybind11;
using NoGil = py::call_guard<py::gil_scoped_release>;

void start_recording(const std::string& folder, const std::optional<Group>& group,
                     int64_t max_file_bytes, double max_file_seconds,
                     std::optional<uint64_t> first_step) {
  profiler::start({folder, group.value_or(Group()), max_file_bytes, max_file_seconds, first_step});
}

/// An annotation that the program ends; torch's own record_function goes through its dispatcher,
/// which takes ten times as long.
class OpenAnnotation {
 public:
  explicit OpenAnnotation(const std::string& name) { range_.emplace(name); }
  void end() { range_.reset(); }

 private:
  std::optional<Annotation> range_;
};

void emit_garbage(int64_t generation, uint64_t begin_ns) {
  comm::Span span;
  span.kind = comm::SpanKind::kGarbage;
  span.number = static_cast<uint64_t>(generation);
  span.begin_ns = begin_ns;
  span.end_ns = comm::now_ns();
  comm::emit(span);
}

/// The code of DataLoader's `__next__`. Read and written with the GIL; never destroyed.
py::object& code_of_next() {
  static auto* const code = new py::object;
  return *code;
}

/// Looks for that `__next__` among the functions that this thread is in. No Python code runs here,
/// so that signals are handled where the program expects it.
std::optional<uint32_t> count_workers() {
  const py::gil_scoped_acquire gil;
  try {
    auto frame = py::reinterpret_borrow<py::object>(
        reinterpret_cast<PyObject*>(PyEval_GetFrame()));  // null on threads of C++
    while (frame && !frame.is_none()) {
      const py::object code = frame.attr("f_code");
      if (code.is(code_of_next())) break;
      frame = frame.attr("f_back");
    }
    if (!frame || frame.is_none()) return {};
    return frame.attr("f_locals")["self"].attr("_num_workers").cast<uint32_t>();
  } catch (const std::exception&) {  // a torch that has it elsewhere
    return {};
  }
}

void watch_data_loaders(const py::object& code) {
  code_of_next() = code;
  profiler::count_workers_by(&count_workers);
}

}  // namespace

void bind_profile(py::module_& module) {
  module.def("start_recording", &start_recording, py::arg("folder"), py::arg("group"),
             py::arg("max_file_bytes"), py::arg("max_file_seconds"), py::arg("first_step"), NoGil(),
             "Write what this rank's threads do to files.");
  module.def("stop_recording", &profiler::stop, NoGil(), "Write the rest.");
  module.def("is_recording", &profiler::is_recording, "Whether this process does.");
  module.def("end_step", &profiler::step, py::arg("mode"), NoGil(), "The program ends a step.");
  py::class_<OpenAnnotation>(module, "OpenAnnotation", "A range of the program.")
      .def(py::init<const std::string&>(), py::arg("name"), "Begin.")
      .def("end", &OpenAnnotation::end, "End; on the same thread.");
  module.def("now_ns", &comm::now_ns, "The clock of spans.");
  module.def("emit_garbage", &emit_garbage, py::arg("generation"), py::arg("begin_ns"),
             "Python's collector has ended.");
  module.def("watch_data_loaders", &watch_data_loaders, py::arg("code"),
             "Record how many workers a DataLoader has, whose __next__ has this code.");
}

}  // namespace farandole::python
