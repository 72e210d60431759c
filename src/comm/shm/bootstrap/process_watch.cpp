// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/process_watch.h"

#include <poll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>

#include "comm/fork_safe_mutex.h"
#include "comm/process_stat.h"
#include "log.h"

namespace farandole::comm::shm {
namespace {

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

using Key = std::pair<int, std::string>;
using Watches = std::map<Key, std::weak_ptr<const ProcessWatch>>;

/// Guarded by fork_safe_mutex<ProcessWatch>(). Never destroyed: groups may be released while the
/// process exits.
Watches& watches() {
  static auto* const instance = new Watches;
  return *instance;
}

/// Finds the watch on a process, or makes it with `make`.
template <class Make>
std::shared_ptr<const ProcessWatch> shared(int pid, const std::string& identity, const Make& make) {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<ProcessWatch>());
  std::weak_ptr<const ProcessWatch>& entry = watches()[{pid, identity}];
  std::shared_ptr<const ProcessWatch> watch = entry.lock();
  if (!watch) entry = watch = make();
  return watch;
}

/// Whether /proc shows at `pid` a later process than that of `identity`.
bool has_successor(int pid, const std::string& identity) {
  if (!proc_has_own_pids()) return false;
  const ProcessStat stat = read_process_stat(std::to_string(pid));
  return !stat.start_time.empty() && identity_of(stat) != identity;
}

/// Once in this process.
void tell_of_closed_descriptors() {
  static std::atomic<bool> was_told{false};
  if (was_told.exchange(true, std::memory_order_relaxed)) return;
  log(LogLevel::kWarning,
      "the program has closed file descriptors that it has not opened, with os.closerange() for "
      "example. Farandole looks after other ranks through /proc from now on; ranks of other "
      "containers are not seen any more.");
}

}  // namespace

Descriptor open_pidfd(int pid) {
#ifdef SYS_pidfd_open
  return Descriptor(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
#else
  static_cast<void>(pid);
  errno = ENOSYS;
  return Descriptor();
#endif
}

std::shared_ptr<const ProcessWatch> ProcessWatch::of(int pid, const std::string& identity) {
  return shared(pid, identity, [&] {
    Descriptor pidfd = open_pidfd(pid);
    const bool is_absent = !pidfd.valid() && errno == ESRCH;
    // Looked up after pidfd_open: if the process still has its pid now, it had it then.
    const bool had_ended = is_absent || has_successor(pid, identity);
    return std::shared_ptr<const ProcessWatch>(
        new ProcessWatch(pid, identity, std::move(pidfd), had_ended));
  });
}

std::shared_ptr<const ProcessWatch> ProcessWatch::of(int pid, const std::string& identity,
                                                     Descriptor pidfd) {
  return shared(pid, identity, [&] {
    return std::shared_ptr<const ProcessWatch>(
        new ProcessWatch(pid, identity, std::move(pidfd), /*had_ended=*/false));
  });
}

ProcessWatch::~ProcessWatch() {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<ProcessWatch>());
  const auto entry = watches().find({pid_, identity_});
  if (entry != watches().end() && entry->second.expired()) watches().erase(entry);
}

bool ProcessWatch::has_ended() const {
  if (had_ended_) return true;
  if (pidfd_.valid()) {
    pollfd entry{pidfd_.get(), POLLIN, 0};
    const bool is_readable = ::poll(&entry, 1, 0) == 1 && (entry.revents & POLLIN) != 0;
    if (pidfd_.is_intact()) return is_readable;  // asked last: what was polled is the pidfd
    tell_of_closed_descriptors();
  }
  if (!is_in_own_pid_namespace(identity_) || !proc_has_own_pids()) return false;
  const ProcessStat stat = read_process_stat(std::to_string(pid_));
  if (stat.state == ProcessStat::kUnknown) return false;
  return stat.state == ProcessStat::kGone || stat.state == 'Z' || identity_of(stat) != identity_;
}

std::optional<int> ProcessWatch::wait_status() const {
  PidfdInfo info{};
  info.mask = kPidfdInfoExit;
  const unsigned long request = _IOWR(0xFF, 11, PidfdInfo);
  if (had_ended_ || !pidfd_.valid() || !pidfd_.is_intact() ||
      ::ioctl(pidfd_.get(), request, &info) != 0 || (info.mask & kPidfdInfoExit) == 0) {
    return std::nullopt;
  }
  return info.exit_code;
}

std::string ProcessWatch::how_it_ended() const {
  const std::optional<int> status = wait_status();
  if (!status) return "ended";
  if (WIFSIGNALED(*status)) {
    const int signal = WTERMSIG(*status);
    return "was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  }
  return "exited with code " + std::to_string(WEXITSTATUS(*status));
}

}  // namespace farandole::comm::shm
