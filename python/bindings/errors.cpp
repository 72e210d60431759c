// SPDX-License-Identifier: Apache-2.0
#include <pybind11/stl.h>

#include <array>
#include <exception>

#include "bindings.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "farandole/process_group/autograd_error.h"

namespace farandole::python {
namespace {

namespace py = pybind11;

/// A C++ error and a class of farandole.errors, or of Python itself.
struct Binding {
  bool (*matches)(const Error* error);
  const char* name;
  PyObject* type = nullptr;  // written once at import, under the GIL; never released
};

template <class Type>
bool is(const Error* error) {
  return dynamic_cast<const Type*>(error) != nullptr;
}

// Derived classes before their bases.
std::array<Binding, 13> errors{{{is<comm::Interrupted>, "KeyboardInterrupt"},
                                {is<InvalidArgument>, "InvalidArgument"},
                                {is<MismatchError>, "MismatchError"},
                                {is<BackwardError>, "BackwardError"},
                                {is<StepError>, "StepError"},
                                {is<PeerFailure>, "PeerFailure"},
                                {is<TimeoutError>, "TimeoutError"},
                                {is<AbortedError>, "AbortedError"},
                                {is<SystemError>, "SystemError"},
                                {is<CommError>, "CommError"},
                                {is<CheckpointError>, "CheckpointError"},
                                {is<NotSupported>, "NotSupported"},
                                {is<Error>, "Error"}}};

/// With the attributes `ranks` and `collective` of the class farandole.Error; needs the GIL.
void set_python_error(const Error& error) {
  for (const Binding& binding : errors) {
    if (!binding.matches(&error)) continue;
    const py::object raised = py::handle(binding.type)(py::str(error.what()));
    if (!error.ranks().empty()) raised.attr("ranks") = py::tuple(py::cast(error.ranks()));
    if (!error.collective().empty()) raised.attr("collective") = error.collective();
    PyErr_SetObject(binding.type, raised.ptr());
    return;
  }
}

/// Also fires for what torch's own bindings throw: they share pybind11's internals with ours.
void translate(std::exception_ptr pointer) {
  try {
    if (pointer) std::rethrow_exception(pointer);
  } catch (const Error& error) {
    set_python_error(error);
  }
}

/// What a Future holds or a hook of autograd throws passes through autograd's engine, which keeps
/// Python's errors as they are and makes RuntimeError of all others.
std::exception_ptr as_python_error(const std::exception_ptr& pointer) {
  if (Py_IsInitialized() == 0) return pointer;
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    const py::gil_scoped_acquire gil;
    set_python_error(error);
    return std::make_exception_ptr(py::error_already_set());
  } catch (...) {
    return pointer;
  }
}

}  // namespace

void bind_errors(py::module_&) {
  const py::module_ classes = py::module_::import("farandole.errors");
  const py::module_ builtins = py::module_::import("builtins");
  for (Binding& binding : errors) {
    const py::module_& module = py::hasattr(classes, binding.name) ? classes : builtins;
    binding.type = py::object(module.attr(binding.name)).release().ptr();
  }
  py::register_exception_translator(translate);
  set_autograd_error_translator(as_python_error);
}

}  // namespace farandole::python
