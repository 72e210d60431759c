// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace farandole::python {

// One function per folder of C++ headers; each adds that folder's names to the module.
void bind_errors(pybind11::module_& module);
void bind_interrupt();  // adds none: Ctrl-C ends waits for other ranks
void bind_logging();    // adds none: what C++ logs goes to Python's logger "farandole"
void bind_kept_file(pybind11::module_& module);
void bind_comm(pybind11::module_& module);
void bind_process_group(pybind11::module_& module);
void bind_data(pybind11::module_& module);
void bind_ddp(pybind11::module_& module);
void bind_optim(pybind11::module_& module);
void bind_amp(pybind11::module_& module);
void bind_checkpoint(pybind11::module_& module);
void bind_profile(pybind11::module_& module);

}  // namespace farandole::python
