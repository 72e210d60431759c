// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/ddp/backward_stats.h"

namespace farandole {

/// Shows who reads the stream of spans (event_stream.h) a backward that is over, and its buckets.
void emit_backward(const BackwardStats& stats);

}  // namespace farandole
