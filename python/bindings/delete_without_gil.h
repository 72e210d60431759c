// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/utils/pybind.h>

namespace farandole::python {

/// The deleter of a class whose destructor waits for operations of its group: their threads may be
/// in the middle of Python's callbacks, which need the GIL.
struct DeleteWithoutGil {
  template <typename T>
  void operator()(T* value) const {
    const pybind11::gil_scoped_release no_gil;
    delete value;
  }
};

}  // namespace farandole::python
