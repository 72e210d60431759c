// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace farandole::checkpoint {

/// Bytes are no safetensors header. The text says why, without the file's name.
class FormatError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A tensor in a safetensors file.
struct StoredTensor {
  std::string name;
  std::string dtype;  ///< "F32", "BF16", "I64", ...
  std::vector<int64_t> shape;
  uint64_t begin = 0;  ///< bytes from the end of the header
  uint64_t end = 0;
};

/// The header of a safetensors file (github.com/huggingface/safetensors, "Format"): 8 bytes with
/// its length, little-endian, then JSON, then the tensors' bytes without gaps.
///
/// Read by hand: of the libraries that there are, the official one is written in Rust, and those in
/// C++ (safetensors-cpp, safetensors.cpp) are not packaged, check less, and cannot say where a
/// tensor lies without mapping the file.
struct SafetensorsHeader {
  std::vector<StoredTensor> tensors;            ///< in the order of their bytes
  std::map<std::string, std::string> metadata;  ///< "__metadata__"

  /// The most that a header may have, as in the official reader.
  static constexpr uint64_t kMostBytes = 100'000'000;

  /// Bytes of the JSON, from the first 8 bytes of a file of `file_bytes`. Throws FormatError.
  static uint64_t length_of(std::string_view first_bytes, uint64_t file_bytes);
  /// Of that JSON. Checks all that the format promises: tensors lie one behind the other, none
  /// overlaps, each has as many bytes as its shape and dtype say, and `data_bytes` is what they
  /// have together. Throws FormatError.
  static SafetensorsHeader parse(std::string_view json, uint64_t data_bytes);

  /// The 8 bytes and the JSON, with blanks at the end so that the data begin at a multiple of 64
  /// bytes.
  std::string compose() const;
};

/// Elements of a shape. Throws FormatError if a size is negative, or if they are too many.
int64_t elements_of(const std::vector<int64_t>& shape);
/// Bytes of an element; 0 for dtypes that are not known here.
uint64_t bytes_of_dtype(std::string_view dtype);

}  // namespace farandole::checkpoint
