// SPDX-License-Identifier: Apache-2.0
#include "process_group/rendezvous.h"

#include <netinet/in.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "comm/shm/system/descriptor.h"
#include "comm/shm/system/system_call.h"
#include "comm/start_thread.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "log.h"
#include "process_group/launch.h"
#include "process_group/store_address.h"

namespace farandole {
namespace {

constexpr const char* kTcp = "tcp://";
constexpr const char* kFile = "file://";
constexpr const char* kThisHost = "127.0.0.1";

bool starts_with(const std::string& text, const std::string& prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

[[noreturn]] void refuse_method(const std::string& method) {
  throw InvalidArgument("init-method",
                        "init_process_group() cannot use init_method '" + method + "'.",
                        "it takes tcp://host:port, file:///path and env://.",
                        "use one of these forms, or leave it out under torchrun.");
}

struct Address {
  std::string host;
  int port;
};

Address address_of(const std::string& method) {
  const std::string place = method.substr(std::string(kTcp).size());
  const size_t colon = place.rfind(':');
  if (colon == std::string::npos || colon == 0) refuse_method(method);
  Address address{place.substr(0, colon), 0};
  const char* end = place.data() + place.size();
  const auto [rest, error] = std::from_chars(place.data() + colon + 1, end, address.port);
  if (error != std::errc() || rest != end || address.port < 0 || address.port > 65535) {
    refuse_method(method);
  }
  return address;
}

/// Throws SystemError if the process has fewer free file descriptors than a TCPStore needs. Without
/// this check, torch aborts the process or waits for the timeout of the store. With torch 2.11, the
/// store of rank 0 needs 11 and one more for each rank; that of another rank needs fewer than 8.
void check_descriptors_left(const c10d::TCPStoreOptions& options, const std::string& attempt) {
  std::vector<comm::shm::Descriptor> opened(options.isServer ? 11 + options.numWorkers.value() : 8);
  for (auto& each : opened) {
    each = comm::shm::Descriptor(::eventfd(0, EFD_CLOEXEC));
    if (!each.valid()) comm::shm::throw_errno(attempt, "free memory on this host.");
  }
}

const char* fix_for(const c10d::TCPStoreOptions& options) {
  if (!options.isServer) {
    return "check that rank 0 is running and that this address belongs to its host.";
  }
  return options.port == 0
             ? "see why this host has no free port (sysctl net.ipv4.ip_local_port_range)."
             : "choose a port that is free on this host, the same on every rank.";
}

/// A socket that listens at `port` of loopback, for a store whose ranks are all on this host:
/// torch's own listen on all interfaces. Invalid if the port is taken, perhaps by another store of
/// this process, which torch then shares.
comm::shm::Descriptor listen_on_loopback(uint16_t* port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(*port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* const raw = reinterpret_cast<sockaddr*>(&address);
  comm::shm::Descriptor made(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  if (!made.valid() || ::setsockopt(made.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      ::bind(made.get(), raw, size) != 0 || ::listen(made.get(), SOMAXCONN) != 0 ||
      ::getsockname(made.get(), raw, &size) != 0) {
    return {};
  }
  *port = ntohs(address.sin_port);
  return made;
}

/// All TCPStores of the C++ library are made here.
c10::intrusive_ptr<c10d::TCPStore> make_store(const std::string& host,
                                              c10d::TCPStoreOptions options, bool is_local) {
  const bool serves = options.isServer;
  const std::string place = host + ":" + std::to_string(options.port);
  check_descriptors_left(
      options, (serves ? "opening the ranks' store at " : "reaching the ranks' store at ") + place);
  comm::shm::Descriptor listener;
  if (serves && is_local) listener = listen_on_loopback(&options.port);
  if (listener.valid()) options.masterListenFd = listener.release();  // the store's from now on
  try {
    return c10::make_intrusive<c10d::TCPStore>(host, options);
  } catch (const c10::Error& error) {
    throw SystemError("store-unreachable",
                      std::string("the ranks' store could not be ") +
                          (serves ? "opened at " : "reached at ") + place + ".",
                      error.what_without_backtrace(), fix_for(options));
  } catch (const std::system_error& error) {
    comm::throw_no_thread("the ranks' store", error);
  }
}

/// `is_local`: all ranks are on this host.
c10::intrusive_ptr<c10d::Store> tcp_store(const Address& address, bool serves, int world_size,
                                          std::chrono::milliseconds timeout, bool is_local) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(address.port);
  options.isServer = serves;
  options.numWorkers = static_cast<size_t>(world_size);
  options.timeout = timeout;
  options.multiTenant = serves;
  options.waitWorkers = false;  // the roll call names those that do not come
  const StoreAddress place(address.host, address.port);
  place.resolve(timeout);
  if (!serves && !place.wait_for_listener(timeout)) {
    throw SystemError(
        "store-unreachable", "the ranks' store could not be reached at " + place.text() + ".",
        "no process has listened there for " + std::to_string(timeout.count()) + " ms.",
        fix_for(options));
  }
  return make_store(address.host, options, is_local);
}

void check_ranks(int rank, int world_size) {
  if (rank >= 0 && rank < world_size) return;
  throw InvalidArgument(
      "rank-and-world-size",
      "init_process_group() got rank " + std::to_string(rank) + " and world_size " +
          std::to_string(world_size) + ".",
      "with a store, tcp:// or file://, both must be given, and ranks count from 0.",
      "pass rank and world_size, or start the script with torchrun.");
}

/// Rank and world size: those of `options`, else the launcher's.
Rendezvous who_am_i(const InitOptions& options) {
  Rendezvous result{options.rank, options.world_size, options.store};
  if (!options.store && (options.rank < 0 || options.world_size < 0)) {
    const Launch launch = find_launch();
    if (launch.launcher != "alone") {
      if (result.rank < 0) result.rank = launch.rank;
      if (result.world_size < 0) result.world_size = launch.world_size;
    }
  }
  check_ranks(result.rank, result.world_size);
  return result;
}

/// A store at a free port of this host, for its ranks alone.
c10::intrusive_ptr<c10d::TCPStore> open_store(int world_size) {
  c10d::TCPStoreOptions options;
  options.port = 0;
  options.isServer = true;
  options.numWorkers = static_cast<size_t>(world_size);
  options.waitWorkers = false;
  return make_store(kThisHost, options, /*is_local=*/true);
}

/// Rank 0's store at `place`. It opens it once and keeps it for as long as its process lives: after
/// the end of a group the others may come back for the next one before rank 0 does.
c10::intrusive_ptr<c10d::Store> kept_store(
    const std::string& place, const std::function<c10::intrusive_ptr<c10d::Store>()>& open) {
  static std::mutex mutex;
  static auto* const stores = new std::map<std::string, c10::intrusive_ptr<c10d::Store>>;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = stores->find(place);
  return found != stores->end() ? found->second : stores->emplace(place, open()).first->second;
}

c10::intrusive_ptr<c10d::Store> announce_store(const std::string& file, int world_size) {
  const auto store = open_store(world_size);
  const std::string draft = file + ".new";
  std::ofstream(draft) << store->getPort() << '\n';
  if (std::rename(draft.c_str(), file.c_str()) == 0) return store;
  throw SystemError("meeting-file", "the file '" + file + "' could not be written.",
                    std::strerror(errno) + std::string("."),
                    "free space there, or set MASTER_ADDR and MASTER_PORT on all ranks.");
}

/// Rank 0 writes its store's port into the file; the others wait for the file.
c10::intrusive_ptr<c10d::Store> store_at(const std::string& file, const Launch& launch,
                                         std::chrono::milliseconds timeout) {
  if (launch.rank == 0) {
    return kept_store(file, [&] { return announce_store(file, launch.world_size); });
  }
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  int port = 0;
  while (!(std::ifstream(file) >> port)) {
    if (std::chrono::steady_clock::now() > deadline) {
      throw TimeoutError("meeting-file-missing",
                         "rank 0 did not come to init_process_group() within " +
                             std::to_string(timeout.count()) + " ms.",
                         "it writes where the ranks meet into '" + file + "', which is not there.",
                         "see whether rank 0 failed before, or raise the timeout.",
                         {{0}, "init_process_group"});
    }
    comm::check_forming_not_interrupted("default");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return tcp_store({kThisHost, port}, /*serves=*/false, launch.world_size, timeout, true);
}

c10::intrusive_ptr<c10d::Store> store_of(const Launch& launch, std::chrono::milliseconds timeout) {
  if (!launch.has_meeting_place()) throw_no_meeting_place(launch);
  if (!launch.meeting_file.empty()) return store_at(launch.meeting_file, launch, timeout);
  const Address address{launch.master_address, launch.master_port};
  const bool serves = launch.rank == 0 && !launch.store_is_served;
  const bool is_local = address.host == kThisHost && launch.local_world_size == launch.world_size;
  const auto open = [&] {
    return tcp_store(address, serves, launch.world_size, timeout, is_local);
  };
  // torchrun's variables are also set by programs that start processes one after another.
  if (!serves || launch.launcher == "torchrun") return open();
  return kept_store(address.host + ":" + std::to_string(address.port), open);
}

void log_launch(const Launch& launch) {
  if (launch.rank != 0) return;
  log(LogLevel::kInfo, "rank 0 of " + std::to_string(launch.world_size) + ", " +
                           (launch.by_hand ? "by the variables RANK and WORLD_SIZE"
                                           : "started by " + launch.launcher) +
                           "; the ranks meet " +
                           (launch.meeting_file.empty() ? "at " + launch.master_address + ":" +
                                                              std::to_string(launch.master_port)
                                                        : "on this host") +
                           ".");
}

Rendezvous meet_by_launcher(const InitOptions& options) {
  const Launch launch = find_launch();
  const bool asks_alone = options.rank == 0 && options.world_size == 1;
  if (launch.launcher == "alone" || (asks_alone && launch.launcher != "torchrun")) {
    if (options.rank > 0 || options.world_size > 1) check_ranks(options.rank, -1);
    if (options.world_size != 1) go_alone();
    return {0, 1, c10::make_intrusive<c10d::HashStore>()};
  }
  const auto store = store_of(launch, options.timeout);
  log_launch(launch);
  return {launch.rank, launch.world_size, store};
}

}  // namespace

Rendezvous meet(const InitOptions& options) {
  const std::string& method = options.init_method;
  if (options.store && !method.empty()) {
    throw InvalidArgument("store-and-init-method",
                          "init_process_group() got both a store and init_method '" + method + "'.",
                          "each of them tells the ranks where to meet, and there can be only one.",
                          "pass one of them.");
  }
  if (!options.store && (method.empty() || method == "env://")) return meet_by_launcher(options);
  Rendezvous result = who_am_i(options);
  if (options.store) return result;
  if (starts_with(method, kTcp)) {
    const Address address = address_of(method);
    result.store = tcp_store(address, result.rank == 0, result.world_size, options.timeout,
                             address.host == kThisHost);
  } else if (starts_with(method, kFile)) {
    result.store = c10::make_intrusive<c10d::FileStore>(method.substr(std::string(kFile).size()),
                                                        result.world_size);
  } else {
    refuse_method(method);
  }
  return result;
}

}  // namespace farandole
