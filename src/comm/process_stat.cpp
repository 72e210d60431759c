// SPDX-License-Identifier: Apache-2.0
#include "comm/process_stat.h"

#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <iterator>
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

ProcessStat read_process_stat(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/stat");
  if (!file) {
    const bool gone = errno == ENOENT || errno == ESRCH;
    return {gone ? ProcessStat::kGone : ProcessStat::kUnknown, ""};
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
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
