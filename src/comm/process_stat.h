// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace farandole::comm {

/// The state and start time of a process from /proc/<pid>/stat (proc(5), fields 3 and 22).
struct ProcessStat {
  static constexpr char kGone = 'X';
  static constexpr char kUnknown = '?';  ///< /proc did not answer

  char state = kGone;
  std::string start_time;  ///< a later process with this pid has another
};
/// The contents of /proc/<pid>/<name>; nullopt, and errno, if it cannot be read, for example
/// because the process ends meanwhile. `pid` is a number, or "self".
std::optional<std::string> read_file_of_process(const std::string& pid, const std::string& name);
/// `pid` is a number, or "self".
ProcessStat read_process_stat(const std::string& pid);

/// Whether /proc has the same process numbers as getpid(); it has others if it belongs to an outer
/// pid namespace.
bool proc_has_own_pids();

/// Tells a process of this pid namespace from all others of its host with its pid, in every
/// namespace and at any time: "pid:[4026531836] 8114707".
std::string identity_of(const ProcessStat& stat);
/// Whether `identity` is of a process that this one can find by its pid.
bool is_in_own_pid_namespace(const std::string& identity);

}  // namespace farandole::comm
