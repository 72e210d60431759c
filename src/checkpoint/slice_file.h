// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/format/json.h"
#include "farandole/checkpoint/tensor_slice.h"

namespace farandole::checkpoint {

/// Bytes of a file that one checksum is of, so that a slice can be read and checked alone.
constexpr uint64_t kChecksumBlock = uint64_t{1} << 18;

/// What the index has of a file.
struct FileRecord {
  std::string name;
  uint64_t bytes = 0;
  std::vector<uint32_t> checksums;  ///< CRC-32C of every kChecksumBlock bytes

  Json to_json() const;
  /// Throws JsonError.
  static FileRecord from_json(const Json& json);
};

/// Writes the slices to a new safetensors file in `folder` and waits until it is on the disk. A
/// slice is a tensor of one dimension, or of the whole shape if it is all of a contiguous tensor;
/// in the metadata "farandole" has the shapes, strides and offsets, and "DCP_SHARDING_INFO" the
/// offsets as torch.distributed.checkpoint reads them. Slices of accelerators are copied to the
/// host piece by piece. Throws CheckpointError. Any thread.
FileRecord write_slices(const std::string& folder, const std::string& name,
                        const std::vector<TensorSlice>& slices);

/// Writes a small file and waits until it is on the disk. Throws CheckpointError.
void write_text(const std::string& path, const std::string& text);
/// Waits until the names in a folder are on the disk. Throws CheckpointError.
void sync_folder(const std::string& path);

}  // namespace farandole::checkpoint
