// SPDX-License-Identifier: Apache-2.0
#include "profile/recorder.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <utility>

#include "comm/start_thread.h"
#include "comm/tcp/network_address.h"
#include "farandole/comm/event_stream.h"
#include "farandole/comm/topology.h"
#include "farandole/config.h"
#include "farandole/process_group/process_group.h"
#include "log.h"
#include "process_group/launch.h"
#include "process_group/store_adapter.h"
#include "profile/range_observer.h"

namespace farandole::profiler {
namespace {

constexpr int64_t kDrainEveryNs = 100'000'000;
constexpr int64_t kCompareEveryNs = 10'000'000'000;
/// A rank 0 that does not answer is asked again after this time, then after twice as long each
/// time.
constexpr int64_t kAskAgainNs = 100'000'000;

}  // namespace

Recorder::Recorder(Options options) : options_(std::move(options)), lines_(options_.owner, clock_) {
  if (options_.store && options_.owner.rank == 0) {
    server_ = std::make_unique<ClockServer>(*options_.store, options_.address, clock_);
  } else if (options_.store) {
    client_ = std::make_unique<ClockClient>(*options_.store, clock_);
    offset_ = client_->measure();
  }
  open_file();
  patience_ns_ = kAskAgainNs;
  compare_at_ns_ = clock_.now() + (offset_ ? kCompareEveryNs : kAskAgainNs);
  thread_ = comm::start_thread("farandole trace", "the recorder", [this] { run(); });
}

Recorder::~Recorder() {
  ends_.store(true);
  wake_.signal();
  thread_.join();
}

void Recorder::open_file() {
  file_ = std::make_unique<TraceFile>(
      (std::filesystem::path(options_.folder) / "framework/pevents").string(),
      std::to_string(options_.owner.pid) + "-" + options_.owner.node + "_pythontimeline",
      clock_.now(), lines_.head(offset_));
}

void Recorder::run() {
  while (!ends_.load()) {
    const int64_t next = clock_.now() + kDrainEveryNs;
    drain();
    rotate();
    compare_clocks();
    wait(next);
  }
  drain();
  if (!file_) return;
  try {
    file_->close(clock_.now());
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, error.what());
  }
}

/// Answers ranks that ask for the time.
void Recorder::wait(int64_t until_ns) {
  std::array<pollfd, 2> events{};
  events[0] = {wake_.get(), POLLIN, 0};
  events[1] = {server_ ? server_->descriptor() : -1, POLLIN, 0};
  for (int64_t now = clock_.now(); now < until_ns && !ends_.load(); now = clock_.now()) {
    const auto left_ms = static_cast<int>((until_ns - now) / 1'000'000 + 1);
    if (::poll(events.data(), events.size(), left_ms) > 0 && server_) server_->answer();
  }
}

void Recorder::drain() {
  const comm::Drained drained = comm::drain_stream();
  std::string lines;
  uint64_t spans = drained.lost;
  for (const comm::ThreadSpans& of : drained.threads) {
    spans += of.spans.size();
    for (const comm::Span& span : of.spans) lines += lines_.line(span, of.thread);
  }
  if (drained.lost > 0) lines += lines_.lost(drained.lost);
  if (!file_) unwritten_ += spans;
  write(lines);
}

/// A disk that is full does not end a training: what cannot be written is counted, and the next
/// file is tried after the time of one.
void Recorder::write(const std::string& lines) {
  if (!file_) return;
  try {
    file_->append(lines);
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, error.what());
    file_.reset();
    open_at_ns_ = clock_.now() + static_cast<int64_t>(options_.max_file_seconds * 1e9);
  }
}

void Recorder::rotate() {
  const int64_t now = clock_.now();
  try {
    if (file_) {
      const bool is_old =
          static_cast<double>(now - file_->begin_ns()) > options_.max_file_seconds * 1e9;
      if (!is_old && file_->bytes() < options_.max_file_bytes) return;
      file_->close(now);
    } else if (now < open_at_ns_) {
      return;
    }
    open_file();
    if (unwritten_ > 0) file_->append(lines_.lost(unwritten_));
    unwritten_ = 0;
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, error.what());
    file_.reset();
    open_at_ns_ = now + static_cast<int64_t>(options_.max_file_seconds * 1e9);
  }
}

void Recorder::compare_clocks() {
  if (!client_ || clock_.now() < compare_at_ns_) return;
  if (const auto offset = client_->measure()) {
    offset_ = offset;
    write(lines_.measured(*offset));
    compare_at_ns_ = clock_.now() + kCompareEveryNs;
    patience_ns_ = kAskAgainNs;
  } else {
    compare_at_ns_ = clock_.now() + patience_ns_;
    patience_ns_ = std::min(2 * patience_ns_, kCompareEveryNs);
  }
}

namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

/// Among ranks of one host they meet on its loopback, else where hosts reach each other.
std::string address_for(bool has_other_hosts) {
  if (!has_other_hosts) return "127.0.0.1:0";
  const std::string wanted = Config::from_environment().network_interface;
  return comm::tcp::address_of_this_host(wanted).text();
}

/// What a group, or else the launcher, knows of this rank.
Recorder::Options with_ranks(const RecorderOptions& options) {
  Recorder::Options all{
      options.folder, options.max_file_bytes, options.max_file_seconds, {}, {}, {}};
  TraceOwner& owner = all.owner;
  owner.pid = static_cast<int>(::getpid());
  owner.host = host_name();
  owner.node = "algo-1";
  const Launch launch = find_launch();
  owner.rank = launch.rank;
  owner.world_size = launch.world_size;
  owner.local_rank = launch.local_rank;
  const Group group = options.group ? options.group : is_initialized() ? default_group() : Group();
  if (!group) return all;
  owner.rank = group->getRank();
  owner.world_size = group->getSize();
  bool has_other_hosts = owner.world_size > launch.local_world_size;  // or nobody knows
  if (const auto own = ProcessGroupFarandole::of(*group)) {
    const comm::Topology& topology = own->topology();
    owner.local_rank = topology.local_rank;
    owner.node = "algo-" + std::to_string(topology.host_of_rank[owner.rank] + 1);
    has_other_hosts = topology.host_count() > 1;
  } else if (launch.launcher != "alone") {
    owner.node = "algo-" + std::to_string(owner.rank / launch.local_world_size + 1);
  }
  if (owner.world_size > 1 && group->getStore()) {
    all.store = std::make_unique<StoreAdapter>(group->getStore());
    if (owner.rank == 0) all.address = address_for(has_other_hosts);
  }
  return all;
}

/// Of this process. Never destroyed: stop() at its exit is.
std::unique_ptr<Recorder>& current() {
  static auto* const recorder = new std::unique_ptr<Recorder>;
  return *recorder;
}

}  // namespace

void start(const RecorderOptions& options) {
  if (is_recording()) return;
  static_cast<void>(current().release());  // a forked child has its parent's, without the thread
  comm::start_stream();
  try {
    current() = std::make_unique<Recorder>(with_ranks(options));
  } catch (...) {
    comm::stop_stream();
    throw;
  }
  observe_ranges(options.first_step);
  static const int at_exit = std::atexit(stop);
  static_cast<void>(at_exit);
}

void stop() {
  if (!is_recording()) return;
  leave_ranges();
  comm::stop_stream();
  current().reset();
}

bool is_recording() { return current() != nullptr && current()->is_of_this_process(); }

void step(const std::string& mode) { end_step(mode); }

}  // namespace farandole::profiler
