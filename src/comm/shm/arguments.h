// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/comm/topology.h"
#include "farandole/comm/types.h"

namespace farandole::comm::shm {

// Checks of a collective's arguments that need no peer. Each throws InvalidArgument; nothing has
// been sent by then.

/// `count` elements, `copies` times, must be countable in bytes.
void check_count(OpKind operation, size_t count, size_t copies, DataType dtype);
void check_root(OpKind operation, int root, const Topology& topology);
/// `lowest` <= peer < world_size; `role` is its name in the call.
void check_peer(const char* call, const char* role, int peer, int lowest, int world_size);
/// `data` may be null only if there is nothing in it.
void check_buffer(OpKind operation, const char* role, const void* data, size_t bytes);
/// Two buffers must be apart, unless the second starts exactly at `in_place`.
void check_overlap(OpKind operation, const void* input, size_t input_bytes, const void* output,
                   size_t output_bytes, const void* in_place);

}  // namespace farandole::comm::shm
