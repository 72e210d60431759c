// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <string>

#include "bindings.h"
#include "log.h"

namespace farandole::python {
namespace {

namespace py = pybind11;

struct Line {
  LogLevel level;
  std::string text;
};

/// Of Python's module logging.
int level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return 40;
    case LogLevel::kWarning:
      return 30;
    case LogLevel::kInfo:
      return 20;
    case LogLevel::kDebug:
      return 10;
  }
  return 0;
}

/// On Python's main thread, with the GIL.
int deliver(void* pending) {
  const std::unique_ptr<Line> line(static_cast<Line*>(pending));
  try {
    const py::object logger = py::module_::import("logging").attr("getLogger")("farandole");
    logger.attr("log")(level_of(line->level), "%s", line->text);
  } catch (py::error_already_set& error) {
    error.discard_as_unraisable("farandole's logger");
  }
  return 0;
}

/// Whoever logs may hold locks, or wait for a thread that has the GIL. So the line is left to the
/// main thread, which takes it up between two of its instructions.
bool hand_over(LogLevel level, const std::string& text) {
  if (Py_IsInitialized() == 0) return false;
  auto line = std::make_unique<Line>(Line{level, text});
  if (Py_AddPendingCall(deliver, line.get()) != 0) return false;  // too many wait already
  line.release();
  return true;
}

}  // namespace

void bind_logging() { set_log_sink(hand_over); }

}  // namespace farandole::python
