// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/exec_watch.h"

#include <unistd.h>

#include <cstdint>
#include <sstream>

#include "comm/process_stat.h"

namespace farandole::comm::shm {
namespace {

constexpr std::chrono::milliseconds kInterval{500};
/// Before the first look at a peer. While a group forms its ranks have just been seen, and if all
/// of many ranks looked at each other, forming would take longer than everything else.
constexpr std::chrono::milliseconds kFirst{700};

std::string maps_of(const std::string& pid) {
  return read_file_of_process(pid, "maps").value_or("");
}

/// Device and inode of what this process has mapped at `address`, as maps write them:
/// " 00:01 1027 ". Empty where /proc does not tell.
std::string file_at(const void* address) {
  std::istringstream maps(maps_of("self"));
  for (std::string line; std::getline(maps, line);) {
    std::istringstream fields(line);  // 7f01-7f02 rw-s 00000000 00:01 1027 /memfd:farandole
    uint64_t begin = 0;
    uint64_t end = 0;
    char dash = 0;
    std::string permissions;
    std::string offset;
    std::string device;
    std::string inode;
    fields >> std::hex >> begin >> dash >> end >> permissions >> offset >> device >> inode;
    const auto place = reinterpret_cast<uintptr_t>(address);
    if (place < begin || place >= end) continue;
    return inode == "0" ? "" : " " + device + " " + inode + " ";
  }
  return "";
}

}  // namespace

ExecWatch::ExecWatch(const Topology& topology, const void* shared)
    : pids_(topology.pids),
      shared_(shared),
      next_looks_(new std::atomic<Clock::rep>[topology.pids.size()]()) {
  const bool sees_pids = proc_has_own_pids();
  const auto first = Clock::now().time_since_epoch() + Clock::duration(kFirst);
  for (size_t rank = 0; rank < pids_.size(); ++rank) {
    next_looks_[rank].store(first.count(), std::memory_order_relaxed);
    const bool is_own = pids_[rank] == static_cast<int>(::getpid());
    if (!sees_pids || is_own || !is_in_own_pid_namespace(topology.processes[rank])) {
      pids_[rank] = 0;
    }
  }
}

const std::string& ExecWatch::segment() const {
  std::call_once(once_, [this] { segment_ = file_at(shared_); });
  return segment_;
}

bool ExecWatch::has_exec_ed(int rank) const {
  const int pid = pids_[static_cast<size_t>(rank)];
  if (pid == 0) return false;
  std::atomic<Clock::rep>& next = next_looks_[static_cast<size_t>(rank)];
  const auto now = Clock::now().time_since_epoch();
  if (now.count() < next.load(std::memory_order_relaxed)) return false;
  next.store((now + Clock::duration(kInterval)).count(), std::memory_order_relaxed);
  if (segment().empty()) return false;
  const auto lacks_segment = [&] {
    const std::string maps = maps_of(std::to_string(pid));
    // A process that is about to end, or that may not be looked at, shows no maps.
    return !maps.empty() && maps.find(segment()) == std::string::npos;
  };
  // One that ends during a read shows a part of its maps, and none the next time.
  return lacks_segment() && lacks_segment();
}

}  // namespace farandole::comm::shm
