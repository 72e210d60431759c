// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <set>
#include <utility>

#include "checkpoint/format/json.h"

namespace farandole::checkpoint {
namespace {

constexpr const char* kMetadata = "__metadata__";
constexpr size_t kLengthBytes = 8;
constexpr size_t kAlignment = 64;

uint64_t offset_of(const Json& value, const std::string& name) {
  const int64_t offset = value.integer("an offset");
  if (offset < 0) throw FormatError("an offset of '" + name + "' is negative");
  return static_cast<uint64_t>(offset);
}

StoredTensor tensor_of(const std::string& name, const Json& value) {
  StoredTensor tensor;
  tensor.name = name;
  tensor.dtype = value.at("dtype").string("a dtype");
  for (const Json& size : value.at("shape").array("a shape")) {
    tensor.shape.push_back(size.integer("a size"));
  }
  const Json::Array& offsets = value.at("data_offsets").array("data_offsets");
  if (offsets.size() != 2) throw FormatError("'" + name + "' does not have two offsets");
  tensor.begin = offset_of(offsets[0], name);
  tensor.end = offset_of(offsets[1], name);
  return tensor;
}

void check(const std::vector<StoredTensor>& tensors, uint64_t data_bytes) {
  uint64_t at = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.begin != at || tensor.end < tensor.begin) {
      throw FormatError("the bytes of '" + tensor.name + "' do not follow those before them");
    }
    at = tensor.end;
    const uint64_t bytes = bytes_of_dtype(tensor.dtype);
    const auto elements = static_cast<uint64_t>(elements_of(tensor.shape));
    if (bytes != 0 && elements * bytes != tensor.end - tensor.begin) {
      throw FormatError("'" + tensor.name + "' has " + std::to_string(tensor.end - tensor.begin) +
                        " bytes, and its shape and dtype make " + std::to_string(elements * bytes));
    }
  }
  if (at != data_bytes) {
    throw FormatError("its tensors have " + std::to_string(at) + " bytes, and the file has " +
                      std::to_string(data_bytes) + " behind the header");
  }
}

}  // namespace

int64_t elements_of(const std::vector<int64_t>& shape) {
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;  // of the widest dtype
  int64_t elements = 1;
  for (const int64_t size : shape) {
    if (size < 0) throw FormatError("a size of a shape is negative");
    if (size != 0 && elements > kMost / size) throw FormatError("a shape is too large");
    elements *= size;
  }
  return elements;
}

uint64_t bytes_of_dtype(std::string_view dtype) {
  constexpr std::pair<std::string_view, uint64_t> kKnown[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2},
      {"U16", 2},  {"F16", 2}, {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},
      {"F64", 8},  {"I64", 8}, {"U64", 8},  {"C64", 8},     {"C128", 16}};
  for (const auto& [name, bytes] : kKnown) {
    if (name == dtype) return bytes;
  }
  return 0;
}

uint64_t SafetensorsHeader::length_of(std::string_view first_bytes, uint64_t file_bytes) {
  if (first_bytes.size() < kLengthBytes || file_bytes < kLengthBytes) {
    throw FormatError("it has fewer than 8 bytes");
  }
  uint64_t length = 0;
  for (size_t i = kLengthBytes; i-- > 0;) {
    length = length << 8 | static_cast<unsigned char>(first_bytes[i]);
  }
  if (length > kMostBytes) throw FormatError("its header is too long; it is no safetensors file");
  if (length > file_bytes - kLengthBytes) {
    throw FormatError("it ends within its header, or is no safetensors file");
  }
  return length;
}

SafetensorsHeader SafetensorsHeader::parse(std::string_view json, uint64_t data_bytes) {
  SafetensorsHeader header;
  try {
    const Json root = Json::parse(json);
    for (const auto& [name, value] : root.object("the header")) {
      if (name != kMetadata) {
        header.tensors.push_back(tensor_of(name, value));
        continue;
      }
      for (const auto& [key, text] : value.object(kMetadata)) {
        header.metadata[key] = text.string("a member of __metadata__");
      }
    }
  } catch (const JsonError& error) {
    throw FormatError(std::string("its header is damaged: ") + error.what());
  }
  std::stable_sort(header.tensors.begin(), header.tensors.end(),
                   [](const StoredTensor& a, const StoredTensor& b) {
                     return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
                   });
  check(header.tensors, data_bytes);
  return header;
}

std::string SafetensorsHeader::compose() const {
  Json::Object root;
  Json::Object texts;
  for (const auto& [key, text] : metadata) texts.emplace_back(key, text);
  if (!texts.empty()) root.emplace_back(kMetadata, std::move(texts));
  for (const StoredTensor& tensor : tensors) {
    Json::Array shape(tensor.shape.begin(), tensor.shape.end());
    Json::Array offsets{static_cast<int64_t>(tensor.begin), static_cast<int64_t>(tensor.end)};
    root.emplace_back(tensor.name, Json::Object{{"dtype", tensor.dtype},
                                                {"shape", std::move(shape)},
                                                {"data_offsets", std::move(offsets)}});
  }
  std::string json = Json(std::move(root)).dump();
  const size_t length = json.size() + kLengthBytes;
  json.append((kAlignment - length % kAlignment) % kAlignment, ' ');
  std::string bytes;
  for (size_t i = 0; i < kLengthBytes; ++i) {
    bytes.push_back(static_cast<char>(json.size() >> (8 * i) & 0xff));
  }
  return bytes + json;
}

}  // namespace farandole::checkpoint
