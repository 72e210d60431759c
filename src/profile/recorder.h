// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "comm/fork_guard.h"
#include "comm/tcp/wake_event.h"
#include "farandole/comm/store.h"
#include "farandole/profile/recorder.h"
#include "profile/clock_client.h"
#include "profile/clock_server.h"
#include "profile/trace_clock.h"
#include "profile/trace_file.h"
#include "profile/trace_lines.h"

namespace farandole::profiler {

/// The thread that brings spans from the queues of the others into files.
class Recorder {
 public:
  struct Options {
    std::string folder;
    int64_t max_file_bytes;
    double max_file_seconds;
    TraceOwner owner;
    std::unique_ptr<comm::Store> store;  ///< null: there are no other ranks to compare clocks with
    std::string address;                 ///< of rank 0: where it tells its time
  };
  /// Throws SystemError.
  explicit Recorder(Options options);
  /// Writes the rest.
  ~Recorder();
  /// Whether this process is the one that made it: a forked child has not the thread.
  bool is_of_this_process() const { return creator_.in_creator(); }

 private:
  void run();
  void wait(int64_t until_ns);
  void drain();
  void write(const std::string& lines);
  void rotate();
  void compare_clocks();
  void open_file();

  const Options options_;
  const comm::ForkGuard creator_;
  const TraceClock clock_;
  const TraceLines lines_;
  const comm::tcp::WakeEvent wake_;
  std::atomic<bool> ends_{false};
  std::unique_ptr<ClockServer> server_;  ///< of rank 0
  std::unique_ptr<ClockClient> client_;  ///< of the others
  std::optional<ClockOffset> offset_;
  int64_t compare_at_ns_ = 0;
  int64_t patience_ns_ = 0;          ///< with a rank 0 that does not answer
  std::unique_ptr<TraceFile> file_;  ///< null while files cannot be written
  int64_t open_at_ns_ = 0;           ///< then: when it is tried again
  uint64_t unwritten_ = 0;           ///< spans that were lost meanwhile
  std::thread thread_;
};

}  // namespace farandole::profiler
