// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "comm/shm/system/descriptor.h"

namespace farandole::checkpoint {

/// Opens a file to read it, without waiting: a FIFO would wait for a writer. Throws CheckpointError
/// if there is none, or something else than a file.
comm::shm::Descriptor open_regular_file(const std::string& path);

/// All that is in it. Throws as open_regular_file().
std::string text_of_file(const std::string& path);

}  // namespace farandole::checkpoint
