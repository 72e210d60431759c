// SPDX-License-Identifier: Apache-2.0
#include "comm/process_stat.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <sstream>

namespace farandole::comm {
namespace {

std::string target_of(const char* link) {
  char target[64];
  const ssize_t length = ::readlink(link, target, sizeof(target));
  return length > 0 ? std::string(target, static_cast<size_t>(length)) : "";
}

std::string own_pid_namespace() { return target_of("/proc/self/ns/pid"); }

}  // namespace

// Without std::ifstream, whose buffer throws if a read fails, which happens if the process has just
// ended.
std::optional<std::string> read_file_of_process(const std::string& pid, const std::string& name) {
  const int file = ::open(("/proc/" + pid + "/" + name).c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return std::nullopt;
  std::string text;
  char part[4096];
  ssize_t bytes = 0;
  do {
    bytes = ::read(file, part, sizeof part);
    if (bytes > 0) text.append(part, static_cast<size_t>(bytes));
  } while (bytes > 0 || (bytes < 0 && errno == EINTR));
  const int error = errno;
  ::close(file);
  errno = error;
  if (bytes < 0) return std::nullopt;
  return text;
}

ProcessStat read_process_stat(const std::string& pid) {
  const auto read = read_file_of_process(pid, "stat");
  if (!read) {
    const bool gone = errno == ENOENT || errno == ESRCH;
    return {gone ? ProcessStat::kGone : ProcessStat::kUnknown, ""};
  }
  const std::string& text = *read;
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return {};
  std::istringstream fields(text.substr(after_name + 1));
  ProcessStat stat;
  fields >> stat.state;
  for (int field = 4; field <= 22; ++field) fields >> stat.start_time;
  return stat;
}

bool proc_has_own_pids() { return target_of("/proc/self") == std::to_string(::getpid()); }

std::string identity_of(const ProcessStat& stat) {
  return own_pid_namespace() + " " + stat.start_time;
}

bool is_in_own_pid_namespace(const std::string& identity) {
  const std::string own = own_pid_namespace();
  return !own.empty() && identity.substr(0, identity.find(' ')) == own;
}

}  // namespace farandole::comm
