// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/error.h"

namespace farandole::comm {

/// A descriptor of `whose`, as "rank 1", is_intact() no more.
inline CommError closed_descriptor_error(const std::string& whose) {
  return CommError("descriptor-closed", "a connection of " + whose + " was closed in its process.",
                   "the program has closed a file descriptor that it has not opened, with "
                   "os.closerange() for example.",
                   "close only descriptors that the program has opened, and restart the job.");
}

}  // namespace farandole::comm
