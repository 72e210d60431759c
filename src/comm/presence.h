// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <iosfwd>
#include <string>

namespace farandole::comm {

/// What a rank publishes about itself while a group forms. No field contains a line break.
struct Presence {
  std::string nonce;    ///< random; tells this try to form a group from all others
  std::string build;    ///< versions and sizes in which ranks must be the same
  std::string attempt;  ///< the launcher's count of restarts; empty if it tells none
  std::string host_id;
  std::string host_name;
  std::string cores;
  std::string process;  ///< see Topology::processes
  int pid = 0;
  int world_size = 0;

  bool is_absent() const { return nonce.empty(); }
  /// "rank 2 (pid 4711 on node-a)"
  std::string describe(int rank) const;
  std::string encode() const;
  /// Absent at the end of the text.
  static Presence decode(std::istream& text);
};

/// 32 random hexadecimal digits. Throws SystemError.
std::string random_token();

}  // namespace farandole::comm
