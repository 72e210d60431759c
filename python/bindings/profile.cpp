// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <cstdint>
#include <optional>
#include <string>

#include "bindings.h"
#include "farandole/comm/event_stream.h"
#include "farandole/profile/annotation.h"
#include "farandole/profile/recorder.h"

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
}

}  // namespace farandole::python
