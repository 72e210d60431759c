// SPDX-License-Identifier: Apache-2.0
#include <pybind11/chrono.h>

#include "bindings.h"
#include "farandole/config.h"
#include "farandole/version.h"

namespace py = pybind11;

PYBIND11_MODULE(_C, module) {
  using farandole::Config;
  using farandole::NonfinitePolicy;
  using farandole::SegmentBacking;

  module.doc() = "Farandole's C++ library. Use the package farandole: this module may change.";
  py::module_::import("torch.distributed");  // its classes are bases of ours

  module.attr("version") = farandole::version();
  module.attr("torch_version_built") = FARANDOLE_TORCH_VERSION;

  py::enum_<SegmentBacking>(module, "SegmentBacking",
                            "Where the pages of shared segments come from.")
      .value("AUTO", SegmentBacking::kAuto, "memfd, or a file in /dev/shm without it")
      .value("MEMFD", SegmentBacking::kMemfd, "memfd_create alone")
      .value("TMPFILE", SegmentBacking::kTmpfile, "an unnamed file in /dev/shm");
  py::enum_<NonfinitePolicy>(module, "NonfinitePolicy",
                             "What becomes of a backward in which a gradient has an Inf or NaN.")
      .value("OFF", NonfinitePolicy::kOff, "nobody looks")
      .value("WARN", NonfinitePolicy::kWarn, "a line in the log")
      .value("SKIP", NonfinitePolicy::kSkip, "and no parameter has a gradient")
      .value("RAISE", NonfinitePolicy::kRaise, "a BackwardError on every rank");
  py::class_<Config>(module, "Config", "Every FARANDOLE_* environment variable, read.")
      .def_static("from_environment", &Config::from_environment,
                  "Read the environment; raise InvalidArgument for a value that cannot be.")
      .def_readonly("host_id", &Config::host_id,
                    "FARANDOLE_HOST_ID; empty: of the kernel, network and user.")
      .def_readonly("network_interface", &Config::network_interface,
                    "FARANDOLE_NETWORK_INTERFACE; empty: the first one that is up.")
      .def_readonly("link_timeout", &Config::link_timeout, "FARANDOLE_LINK_TIMEOUT_S.")
      .def_readonly("spin", &Config::spin, "FARANDOLE_SPIN_US: how long a waiting rank spins.")
      .def_readonly("staging_bytes", &Config::staging_bytes, "FARANDOLE_STAGING_BYTES of one ring.")
      .def_readonly("segments", &Config::segments, "FARANDOLE_SEGMENTS.")
      .def_readonly("timeout", &Config::timeout, "FARANDOLE_TIMEOUT_S, where a call has none.")
      .def_readonly("check_finite", &Config::check_finite, "FARANDOLE_CHECK_FINITE.")
      .def_readonly("born_gradients", &Config::born_gradients, "FARANDOLE_BORN_GRADIENTS.")
      .def_readonly("log_level", &Config::log_level, "FARANDOLE_LOG.");

  farandole::python::bind_errors(module);
  farandole::python::bind_interrupt();
  farandole::python::bind_logging();
  farandole::python::bind_kept_file(module);
  farandole::python::bind_comm(module);
  farandole::python::bind_process_group(module);
  farandole::python::bind_data(module);
  farandole::python::bind_ddp(module);
  farandole::python::bind_optim(module);
  farandole::python::bind_amp(module);
  farandole::python::bind_checkpoint(module);
  farandole::python::bind_profile(module);
}
