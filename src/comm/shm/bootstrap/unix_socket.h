// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "comm/shm/system/descriptor.h"
#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

/// Ranks that one exchange can hold: the descriptors that the kernel passes in one message.
constexpr int kMaxRanks = 250;
constexpr const char* kSocketFix = "check whether a sandbox forbids Unix sockets.";

// Unix sockets that keep messages apart (SOCK_SEQPACKET), under abstract names: they have no file,
// so nothing stays behind. They join processes of one network namespace of one kernel alone.

/// A socket that does not block and takes connections under `name`, at most 107 bytes. Throws
/// SystemError.
FARANDOLE_API Descriptor listen_as(const std::string& name);
/// A connection to whoever listens under `name`; invalid, and errno, if nobody does. Throws
/// SystemError.
Descriptor connect_to(const std::string& name);

/// Whether the process behind a connection runs as this one's user.
bool same_user(int socket_fd);
/// Whether it is that of `rank`, as far as this pid namespace can tell.
bool is_process_of(int socket_fd, int rank, const Topology& topology);

/// Whether a message, or the end, has come.
bool readable_within(int fd, std::chrono::milliseconds timeout);
/// Whether somebody calls `listener`, and which of `callers` have said something or hung up. False
/// if nothing came.
bool find_readable(int listener, const std::vector<Descriptor>& callers,
                   std::chrono::milliseconds timeout, bool* is_called,
                   std::vector<size_t>* speaking);
/// Takes one more caller of this process's user. If `callers` has `most` already, or this process
/// can open no more files, the oldest silent caller that is not awaited makes room. If all are
/// awaited, the oldest makes room for `most`, and a lack of files throws SystemError.
FARANDOLE_API void accept_caller(int listener, size_t most,
                                 const std::function<bool(int socket_fd)>& is_awaited,
                                 std::vector<Descriptor>* callers);

/// Sends a message with descriptors, or finds the peer gone, which whoever waits for it will tell.
/// False if too many descriptors were under way all the time (unix(7), ETOOMANYREFS). Throws
/// SystemError.
bool send_within(int socket_fd, const void* message, size_t bytes, const std::vector<int>& fds,
                 std::chrono::milliseconds limit);
/// Receives one message of exactly `bytes`; false at the end or for another size. Throws
/// SystemError if its descriptors found no room.
bool receive_whole(int socket_fd, void* message, size_t bytes, std::vector<Descriptor>* fds);

}  // namespace farandole::comm::shm
