// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "support/simulated_device/stream.h"

namespace farandole::sim {

// The memory of devices. A device address cannot be followed: the host that tries gets SIGSEGV. The
// bytes are a fixed distance away, in memory that only kernels use. New memory and released memory
// is filled with 0xFF bytes (NaN, -1), so that results show that it was read.
//
// Memory that was released is used again when all that its stream and the recorded streams were
// given before has run. Memory that was allocated on a captured stream is used again when the graph
// has ended, too, and then all streams of the device. Any thread may call.

/// Memory on the device of `owner`, for use on that stream and on those that wait for it; null for
/// 0 bytes. With a stream on which nothing is ever launched it is as cudaMalloc's: any stream may
/// use it at once, and only what the host has waited for is over at its release. Throws DeviceError
/// when memory runs out.
void* allocate(Stream& owner, size_t bytes);
/// Ends the program if `data` is neither null nor what allocate() has returned. Does nothing in a
/// forked child that cannot use devices.
void release(void* data) noexcept;
/// Memory at `data`, an address in an allocation, must not be used again after its release until
/// what `user` has been given by then is done. Ignores addresses outside of allocations.
void record_stream(const void* data, Stream& user);

/// What was allocated on a captured stream is not the graph's any more.
void let_go_of_graph_memory(void* data) noexcept;

bool is_device_address(const void* data);
/// The device of the allocation that `data` is in; -1 if there is none.
int device_of(const void* data);
/// Allocated and not released, on one device.
size_t bytes_in_use(int device);

/// From a device address to its bytes.
intptr_t distance_to_bytes();

/// The bytes at a device address, for kernels; null for null.
template <class T>
T* bytes_of(T* data) {
  if (data == nullptr) return nullptr;
  return reinterpret_cast<T*>(reinterpret_cast<intptr_t>(data) + distance_to_bytes());
}

}  // namespace farandole::sim
