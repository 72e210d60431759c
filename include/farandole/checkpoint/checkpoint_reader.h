// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// Reads a checkpoint: any elements of any tensor in it, whoever saved them. What is read is
/// compared with its checksums. Nothing is collective.
///
/// Threads: any, read() at the same time too.
class FARANDOLE_API CheckpointReader {
 public:
  /// A tensor of the checkpoint.
  struct Entry {
    at::ScalarType dtype;
    std::vector<int64_t> shape;
    std::vector<int64_t> strides;  ///< the order in which offsets count its elements
  };

  /// `path`: a checkpoint's folder, or that in which checkpoints are saved, of which the latest is
  /// opened. Reads the index and the headers of all files. Throws CheckpointError: nothing is
  /// there, a file is missing, damaged or of a newer format, or a tensor has gaps.
  explicit CheckpointReader(const std::string& path);
  ~CheckpointReader();
  CheckpointReader(const CheckpointReader&) = delete;
  CheckpointReader& operator=(const CheckpointReader&) = delete;

  /// The checkpoint's own folder.
  const std::string& folder() const;
  /// By key.
  const std::map<std::string, Entry>& entries() const;
  /// What was saved beside tensors: a JSON text.
  const std::string& values() const;
  /// How many ranks have saved it.
  int world_size() const;

  /// Elements `offset` to offset + elements of a tensor, as a new one of one dimension on the CPU.
  /// Throws CheckpointError, and InvalidArgument for what it has not.
  at::Tensor read(const std::string& key, int64_t offset, int64_t elements) const;
  /// A whole tensor with its shape and strides.
  at::Tensor read(const std::string& key) const;
  /// As read(), into the memory of a contiguous tensor of one dimension, on any device and of any
  /// dtype, as many elements as that has. If it throws, some of them may have been read.
  void read_into(const std::string& key, int64_t offset, const at::Tensor& into) const;
  /// A whole tensor, into one of its shape.
  void read_into(const std::string& key, const at::Tensor& into) const;

  /// Compares what read_into() will read with its checksums, so that this fails before anything is
  /// changed. Nothing is kept, and nothing is compared twice. Throws as read().
  void check(const std::string& key, int64_t offset, int64_t elements) const;
  /// This rank's share of a whole tensor that each of `world_size` ranks will read.
  void check(const std::string& key, int rank, int world_size) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace farandole
