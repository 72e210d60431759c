// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "comm/shm/system/descriptor.h"
#include "farandole/export.h"

namespace farandole::comm::shm {

// A forked child would continue to share pages that are mapped MAP_SHARED: what it writes would
// reach its parent and the other ranks. The pages registered here become private to each child
// before fork() returns there, at the same addresses. The child then has what it would have with a
// plain tensor: contents that it may read and overwrite for itself.
//
// How: pages of a segment are mapped again with MAP_PRIVATE, through a descriptor that this process
// keeps. This costs a fork() microseconds and no memory. A page that the child has not written to
// shows later writes of the parent and its peers. Without a descriptor (at most half of the
// process's descriptors are kept for this) the child copies the pages.
//
// Threads: any. fork() waits for calls to end. In a child all pages are its own, so nothing is left
// to do for its own children.

/// `bytes` at `data` are `segment`, from its start. Does nothing if that is known.
void make_private_in_children(void* data, size_t bytes, const Descriptor& segment);

/// `bytes` at `data` are those at `original`, mapped a second time; a child need not have inherited
/// them (MADV_DONTFORK). If `original` is in no segment that is named, the child copies them.
FARANDOLE_API void make_private_in_children(void* data, size_t bytes, const void* original);

/// To be called before the pages at `data` are unmapped or replaced, in the process that named
/// them.
FARANDOLE_API void forget_private_in_children(void* data);

}  // namespace farandole::comm::shm
