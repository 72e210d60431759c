// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/export.h"

namespace farandole {

/// From what must be read to what only helps to debug.
enum class LogLevel { kError, kWarning, kInfo, kDebug };

/// Writes one line "farandole INFO: text" to standard error in a single write, or hands the text to
/// the sink, if FARANDOLE_LOG lets the level through. Throws nothing for a variable that is not
/// valid. Any thread.
FARANDOLE_API void log(LogLevel level, const std::string& text);

/// Takes the texts of log(), on any thread; false: it cannot, and standard error gets the line.
using LogSink = bool (*)(LogLevel level, const std::string& text);
/// For bindings to languages with a logging of their own; nullptr restores standard error.
FARANDOLE_API void set_log_sink(LogSink sink);

}  // namespace farandole
