// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

namespace farandole::comm::tcp {

/// What both sides of a connection send first. Bytes in network order would not help: ranks have
/// the same build.
struct Hello {
  char magic[8];
  uint32_t version;
  int32_t rank;
  int32_t lane;
  char session[32];
};

/// `session`: the group's random token, which only its ranks know, through the store.
Hello make_hello(const std::string& session, int rank, int lane);
/// Whether `hello` is what `rank` sends for `lane`.
bool is_right(const Hello& hello, const std::string& session, int rank, int lane);

}  // namespace farandole::comm::tcp
