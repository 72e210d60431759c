// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/format/json.h"
#include "comm/private_descriptor.h"

namespace farandole::debugger {

/// Appends lines to the files of one worker: the format of farandole.debugger.record_file of
/// Python, whose docstring states it. A line is one write() to the operating system.
///
/// Errors: SystemError. Threads: one at a time.
class RecordFile {
 public:
  /// `folder`: of the hook; `worker`: "worker_0"; `workers`: how many of them write.
  RecordFile(const std::string& folder, std::string worker, int workers);

  void write(const checkpoint::Json& record);
  /// Whole tensors of the next line, in a file of their own; returns its name.
  std::string write_raw(const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  /// Says that the worker has ended.
  void close();

 private:
  void begin_file();
  std::string path(const std::string& suffix) const;

  const std::string folder_;
  const std::string worker_;
  const int workers_;
  comm::PrivateDescriptor file_;
  int number_ = 0;
  int raw_files_ = 0;
  int64_t bytes_ = 0;
};

/// The last step of each mode in the files of a hook's folder, of any worker that has ended;
/// "GLOBAL": of all modes.
std::map<std::string, int64_t> last_steps(const std::string& folder);

}  // namespace farandole::debugger
