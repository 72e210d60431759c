// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "farandole/export.h"

namespace farandole::comm {

/// Where the plug-in `file` lies: beside this library.
FARANDOLE_API std::string path_beside_this_library(const std::string& file);

/// Opens the plug-in at `path`, which stays open until the process ends, and returns what its
/// function `symbol` returns: a Plugin, whose first member is the version of Farandole that it was
/// built with. Where there is none that fits, `refuse` is told why in a sentence; it throws. Any
/// thread.
FARANDOLE_API const void* open_plugin(const std::string& path, const char* symbol,
                                      const std::function<void(const std::string& why)>& refuse);

}  // namespace farandole::comm
