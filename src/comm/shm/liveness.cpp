// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/liveness.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <sstream>
#include <utility>

namespace farandole::comm::shm {
namespace {

constexpr char kUnknown = '?';  ///< /proc did not answer

/// State letter and start time of a process, from /proc/<pid>/stat (proc(5), fields 3 and 22).
struct ProcessStat {
  char state = 'X';
  std::string start_time;
};

ProcessStat read_stat(int pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  if (!file) return {errno == ENOENT || errno == ESRCH ? 'X' : kUnknown, ""};
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return {};
  std::istringstream fields(text.substr(after_name + 1));
  ProcessStat stat;
  fields >> stat.state;
  for (int field = 4; field <= 22; ++field) fields >> stat.start_time;
  return stat;
}

/// struct pidfd_info of linux/pidfd.h (Linux 6.13; exit codes since 6.15), declared here because
/// build machines have older headers.
struct PidfdInfo {
  uint64_t mask;
  uint64_t cgroup_id;
  uint32_t pid, tgid, ppid;
  uint32_t ruid, rgid, euid, egid, suid, sgid, fsuid, fsgid;
  int32_t exit_code;
};
constexpr uint64_t kPidfdInfoExit = 1U << 3;

}  // namespace

Descriptor own_pidfd() {
#ifdef SYS_pidfd_open
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
#else
  return Descriptor();
#endif
}

Liveness::Liveness(std::vector<Descriptor> pidfds, std::vector<int> pids)
    : pidfds_(std::move(pidfds)), pids_(std::move(pids)) {
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    start_times_.push_back(pidfds_[rank].valid() ? "" : read_stat(pids_[rank]).start_time);
  }
}

bool Liveness::is_dead(int rank) const {
  const auto index = static_cast<size_t>(rank);
  if (pidfds_[index].valid()) {
    pollfd entry{pidfds_[index].get(), POLLIN, 0};
    return ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
  }
  if (pids_[index] == ::getpid()) return false;  // a thread of this process
  const ProcessStat stat = read_stat(pids_[index]);
  if (stat.state == kUnknown) return false;
  return stat.state == 'Z' || stat.state == 'X' || stat.start_time != start_times_[index];
}

std::string Liveness::cause_of_death(int rank) const {
  const auto index = static_cast<size_t>(rank);
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  const unsigned long request = _IOWR(0xFF, 11, PidfdInfo);
  if (!pidfds_[index].valid() || ::ioctl(pidfds_[index].get(), request, &info) != 0 ||
      (info.mask & kPidfdInfoExit) == 0) {
    return "ended";
  }
  if (WIFSIGNALED(info.exit_code)) {
    const int signal = WTERMSIG(info.exit_code);
    return "was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  }
  return "exited with code " + std::to_string(WEXITSTATUS(info.exit_code));
}

}  // namespace farandole::comm::shm
