// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include "comm/private_descriptor.h"
#include "farandole/export.h"

namespace farandole::profiler {

/// A file of a trace: a JSON array with a line for each element, which is readable while it grows.
/// It has its final name, with the time of its end, when it is closed. Threads: one at a time.
class FARANDOLE_API TraceFile {
 public:
  /// `folder`: framework/pevents of an output folder; `suffix`: "<pid>-<node>_pythontimeline";
  /// `head`: its first lines. Throws SystemError.
  TraceFile(const std::string& folder, const std::string& suffix, int64_t begin_ns,
            const std::string& head);

  /// `lines`: one or more, each with ",\n" at its end. Throws SystemError.
  void append(const std::string& lines);
  /// Throws SystemError.
  void close(int64_t end_ns);
  int64_t begin_ns() const { return begin_ns_; }
  int64_t bytes() const { return bytes_; }

 private:
  void write(const std::string& text);

  const std::string folder_;
  const std::string suffix_;
  const int64_t begin_ns_;
  const std::string path_;
  const comm::PrivateDescriptor descriptor_;
  int64_t bytes_ = 0;
};

}  // namespace farandole::profiler
