// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <vector>

#include "support/simulated_device/memory.h"
#include "support/simulated_device/stream.h"

namespace farandole::sim {

/// Memory of a device that is used on one stream.
class DeviceBuffer {
 public:
  /// Filled by a kernel.
  DeviceBuffer(Stream& stream, const std::vector<char>& bytes)
      : stream_(stream), size_(bytes.size()), data_(static_cast<char*>(allocate(stream, size_))) {
    stream_.launch("fill", {{data_, size_, true}},
                   [bytes, to = bytes_of(data_)] { std::copy(bytes.begin(), bytes.end(), to); });
  }
  DeviceBuffer(Stream& stream, size_t bytes)
      : stream_(stream), size_(bytes), data_(static_cast<char*>(allocate(stream, bytes))) {}
  ~DeviceBuffer() { release(data_); }
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;

  char* data() const { return data_; }

  /// Waits for the stream.
  std::vector<char> read() const {
    stream_.synchronize();
    const char* bytes = bytes_of(data_);
    return {bytes, bytes + size_};
  }

 private:
  Stream& stream_;
  size_t size_;
  char* data_;
};

}  // namespace farandole::sim
