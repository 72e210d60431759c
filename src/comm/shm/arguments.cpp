// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/arguments.h"

#include <cstdint>
#include <limits>
#include <string>

#include "farandole/error.h"

namespace farandole::comm::shm {

void check_count(OpKind operation, size_t count, size_t copies, DataType dtype) {
  constexpr size_t kMost = static_cast<size_t>(std::numeric_limits<int64_t>::max());
  if (count <= kMost / copies / size_of(dtype)) return;
  throw InvalidArgument(
      "count-too-large",
      std::string(name_of(operation)) + " of " + std::to_string(count) + " elements is too large.",
      "its size in bytes does not fit into 63 bits.",
      "check for a negative or uninitialized count.");
}

void check_root(OpKind operation, int root, const Topology& topology) {
  if (root >= 0 && root < topology.world_size) return;
  throw InvalidArgument(
      "invalid-root",
      std::string(name_of(operation)) + " was called with root=" + std::to_string(root) + ".",
      "the group has ranks 0 to " + std::to_string(topology.world_size - 1) + ".",
      "pass the root's rank in this group.");
}

void check_peer(const char* call, const char* role, int peer, int lowest, int world_size) {
  if (peer >= lowest && peer < world_size) return;
  throw InvalidArgument(
      "invalid-peer",
      std::string(call) + " was called with " + role + "=" + std::to_string(peer) + ".",
      "the group has ranks 0 to " + std::to_string(world_size - 1) + ".",
      "pass the peer's rank in this group.");
}

void check_buffer(OpKind operation, const char* role, const void* data, size_t bytes) {
  if (data != nullptr || bytes == 0) return;
  throw InvalidArgument(
      "missing-buffer", std::string(name_of(operation)) + " was called without " + role + ".",
      "the pointer is null but " + std::to_string(bytes) + " bytes were to be read or written.",
      "pass a buffer of that size.");
}

void check_overlap(OpKind operation, const void* input, size_t input_bytes, const void* output,
                   size_t output_bytes, const void* in_place) {
  const auto in = reinterpret_cast<uintptr_t>(input);
  const auto out = reinterpret_cast<uintptr_t>(output);
  const bool apart = in + input_bytes <= out || out + output_bytes <= in;
  if (apart || output == in_place || input_bytes == 0 || output_bytes == 0) return;
  throw InvalidArgument(
      "input-output-overlap", std::string(name_of(operation)) + ": input and output overlap.",
      "they must be separate, or at the in-place position of the operation.",
      "use separate buffers, or the in-place position that communicator.h gives.");
}

}  // namespace farandole::comm::shm
