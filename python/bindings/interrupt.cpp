// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/interrupt.h"

#include <pthread.h>
#include <pybind11/pybind11.h>
#include <signal.h>

#include <atomic>

#include "bindings.h"

namespace farandole::python {
namespace {

namespace py = pybind11;

// Python handles SIGINT by setting a flag that its main thread looks at between two instructions,
// which do not come while the thread waits for other ranks in C++. That flag can be read with the
// GIL alone, which another thread may hold for long. So a handler of our own, before Python's, sets
// one that a wait can read. Only if it is set, the wait takes the GIL and asks Python. Handlers of
// the program never run inside of a wait: they may call collectives.

std::atomic<bool> sigint_came{false};
/// Python's own, written at import before ours is installed; nullptr: Python does not handle
/// SIGINT.
void (*python_handler)(int) = nullptr;
pthread_t main_thread;

void on_interrupt(int number) {
  sigint_came.store(true, std::memory_order_relaxed);
  python_handler(number);
}

/// Puts our handler before Python's, if that is the one that is called now, but not before one that
/// another library has installed, which may call ours. Returns whether it was not there before.
bool install() {
  struct sigaction current {};
  if (python_handler == nullptr || ::sigaction(SIGINT, nullptr, &current) != 0) return false;
  if ((current.sa_flags & SA_SIGINFO) != 0 || current.sa_handler != python_handler) return false;
  current.sa_handler = on_interrupt;
  return ::sigaction(SIGINT, &current, nullptr) == 0;
}

/// Whether Python would raise KeyboardInterrupt now; if so, it no longer will. Needs the GIL. It
/// runs no instruction of Python, before which the interpreter would call the handler.
bool consume_interrupt() {
  const py::module_ signals = py::module_::import("_signal");
  const py::object handler = signals.attr("getsignal")(SIGINT);
  if (!handler.is(signals.attr("default_int_handler"))) return false;
  return PyOS_InterruptOccurred() != 0;
}

bool is_python_interrupted() {
  if (::pthread_equal(::pthread_self(), main_thread) == 0) return false;
  // signal.signal() has taken ours away, as notebooks do for each cell. One may have come
  // meanwhile.
  if (install()) sigint_came.store(true, std::memory_order_relaxed);
  if (!sigint_came.exchange(false, std::memory_order_relaxed)) return false;
  if (Py_IsInitialized() == 0) return false;
  const py::gil_scoped_acquire gil;
  try {
    return consume_interrupt();
  } catch (py::error_already_set& error) {
    return error.matches(PyExc_KeyboardInterrupt);  // else the interpreter ends
  }
}

}  // namespace

void bind_interrupt() {
  const py::module_ threads = py::module_::import("threading");
  const auto ident = threads.attr("main_thread")().attr("ident").cast<unsigned long>();
  main_thread = static_cast<pthread_t>(ident);
  const py::object handler = py::module_::import("_signal").attr("getsignal")(SIGINT);
  struct sigaction current {};
  if (PyCallable_Check(handler.ptr()) != 0 && ::sigaction(SIGINT, nullptr, &current) == 0 &&
      (current.sa_flags & SA_SIGINFO) == 0) {
    python_handler = current.sa_handler;
  }
  install();
  comm::set_interrupt_check(is_python_interrupted);
}

}  // namespace farandole::python
