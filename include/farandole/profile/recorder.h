// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole::profiler {

struct RecorderOptions {
  std::string folder = "profiler-output";
  Group group = {};                   ///< the ranks; the default group if there is one, else alone
  int64_t max_file_bytes = 10 << 20;  ///< then a file is closed and the next one begins
  double max_file_seconds = 60;
  /// Number of the first step, of a program that ends its steps by step() alone. Without it steps
  /// count from 0, and those of optimizers end them until step() is called.
  std::optional<uint64_t> first_step = {};
};

/// Writes what this rank's threads do to files below `folder`, until stop() or the end of the
/// process: collectives, backwards with their buckets, optimizer steps, waits for data,
/// checkpoints, and what is annotated (annotation.h). The files are arrays of Chrome's trace
/// format, with a line for each span (trace_lines.h), where SageMaker Debugger has them, with the
/// hour and microsecond of their end:
///
///     framework/pevents/2026112605/1795669512000000_4711-algo-1_pythontimeline.json
///
/// A file that is still written ends in ".tmp"; what a killed process leaves is one without its
/// last tenth of a second.
///
/// One thread drains the queues of the others (event_stream.h) every 100 ms. Times are those of
/// this host's steady clock, and files say by how much it differs from that of rank 0, measured
/// every 10 s (Cristian 1989, "Probabilistic clock synchronization").
///
/// Does nothing if it is recording already. Local: ranks may differ, but times are of one clock
/// only if rank 0 records too. Throws SystemError if the folder cannot be written. Threads: one
/// call of these functions at a time.
FARANDOLE_API void start(const RecorderOptions& options = {});
/// Writes what is there and closes the file. Local.
FARANDOLE_API void stop();
FARANDOLE_API bool is_recording();

/// The program ends a step of its training, or in mode "EVAL" of its evaluation. Without such
/// calls a step ends with each step of an optimizer. Any thread.
FARANDOLE_API void step(const std::string& mode = "TRAIN");

}  // namespace farandole::profiler
