// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>

namespace farandole::sim {

/// Memory of the current device, for use on the current stream and those that wait for it.
c10::Allocator* device_allocator();

/// Memory of the host, which is known as pinned by its address.
c10::Allocator* pinned_allocator();
bool is_pinned(const void* data);

/// Gives the storage other memory, to which its bytes are copied on the current stream.
void resize_storage(c10::StorageImpl& storage, size_t bytes);

}  // namespace farandole::sim
