// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "farandole/checkpoint/pending_checkpoint.h"

namespace farandole::checkpoint {

/// The newest save of this process. Threads: any.
void note_last(const PendingCheckpoint& save);
/// nullopt: it has begun none.
std::optional<PendingCheckpoint> last_checkpoint();

}  // namespace farandole::checkpoint
