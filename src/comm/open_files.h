// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "farandole/export.h"

namespace farandole::comm {

/// The descriptors of this process.
struct OpenFiles {
  size_t open;
  size_t most;  ///< ulimit -n
};

/// nullopt if the kernel does not tell. Any thread.
FARANDOLE_API std::optional<OpenFiles> open_files();

/// What to say when `group`, which took `taken` of them, has formed and few more like it fit; empty
/// if there is room.
FARANDOLE_API std::string text_of_few_left(const std::string& group, size_t taken,
                                           const OpenFiles& now);

}  // namespace farandole::comm
