// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/export.h"

namespace farandole {

/// From what must be read to what only helps to debug.
enum class LogLevel { kError, kWarning, kInfo, kDebug };

/// Writes one line "farandole INFO: text" to standard error in a single write, if FARANDOLE_LOG
/// lets the level through. Any thread.
FARANDOLE_API void log(LogLevel level, const std::string& text);

}  // namespace farandole
