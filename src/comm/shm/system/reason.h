// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farandole::comm::shm {

/// What and why of an error's text in one line, for the errors of peers: "mapping 4096 bytes of
/// shared memory failed. Cannot allocate memory (errno 12)."
inline std::string reason_of(const std::string& text) {
  const std::string why = "\nwhy: ";
  const std::string fix = "\nfix: ";
  std::string reason = text.substr(0, text.find(fix));
  const size_t begin = reason.find(why);
  if (begin != std::string::npos) reason.replace(begin, why.size(), " ");
  return reason;
}

}  // namespace farandole::comm::shm
