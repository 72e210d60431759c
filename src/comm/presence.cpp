// SPDX-License-Identifier: Apache-2.0
#include "comm/presence.h"

#include <sys/random.h>

#include <array>
#include <charconv>
#include <cstdio>
#include <istream>

#include "comm/shm/system/system_call.h"

namespace farandole::comm {
namespace {

std::string next_line(std::istream& text) {
  std::string line;
  std::getline(text, line);
  return line;
}

int next_number(std::istream& text) {
  const std::string line = next_line(text);
  int number = 0;
  std::from_chars(line.data(), line.data() + line.size(), number);
  return number;
}

}  // namespace

std::string Presence::describe(int rank) const {
  return "rank " + std::to_string(rank) + " (pid " + std::to_string(pid) + " on " + host_name + ")";
}

/// The nonce and the build come first in all versions, so that ranks of different versions can name
/// each other's.
std::string Presence::encode() const {
  std::string text;
  for (const std::string& field : {nonce, build, attempt, host_id, host_name, cores, process,
                                   std::to_string(pid), std::to_string(world_size)}) {
    text += field + "\n";
  }
  return text;
}

Presence Presence::decode(std::istream& text) {
  Presence presence;
  presence.nonce = next_line(text);
  presence.build = next_line(text);
  presence.attempt = next_line(text);
  presence.host_id = next_line(text);
  presence.host_name = next_line(text);
  presence.cores = next_line(text);
  presence.process = next_line(text);
  presence.pid = next_number(text);
  presence.world_size = next_number(text);
  return presence;
}

std::string random_token() {
  std::array<unsigned char, 16> bytes{};
  ssize_t size = -1;
  do {
    size = ::getrandom(bytes.data(), bytes.size(), 0);
  } while (size < 0 && errno == EINTR);
  if (size != static_cast<ssize_t>(bytes.size())) {
    shm::throw_errno("getrandom", "see whether the sandbox forbids it.");
  }
  std::string token;
  for (const unsigned char byte : bytes) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", byte);
    token += digits;
  }
  return token;
}

}  // namespace farandole::comm
