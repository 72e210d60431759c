// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include "farandole/checkpoint/checkpoint_writer.h"
#include "farandole/process_group/init.h"

namespace farandole::checkpoint {

/// This process's writer of a folder for a group, which is kept so that a save goes on while
/// training does; the end of the program waits for it. Collective the first time. Threads: one call
/// at a time.
std::shared_ptr<CheckpointWriter> writer_of(const std::string& path, const Group& group);

}  // namespace farandole::checkpoint
