// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/checkpoint_reader.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <utility>

#include "checkpoint/checked_file.h"
#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/dtype_names.h"
#include "checkpoint/format/safetensors.h"
#include "checkpoint/new_memory.h"
#include "farandole/error.h"

namespace farandole {

using checkpoint::CheckedFile;
using checkpoint::CheckpointIndex;
using checkpoint::elements_of;
using checkpoint::FileRecord;
using checkpoint::FormatError;
using checkpoint::Json;
using checkpoint::JsonError;
using checkpoint::SafetensorsHeader;
using checkpoint::StoredTensor;
using checkpoint::throw_damaged;

namespace {

/// Elements for another device or dtype that are read at a time.
constexpr int64_t kConvertedTogether = 4 << 20;

std::vector<int64_t> numbers_of(const Json& array) {
  std::vector<int64_t> numbers;
  for (const Json& each : array.array()) numbers.push_back(each.integer());
  return numbers;
}

/// Whether strides are those of contiguous memory in some order of the dimensions.
bool are_dense(const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
  std::vector<std::pair<int64_t, int64_t>> by_stride;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (strides[i] < 0) return false;
    if (shape[i] == 0) return true;
    if (shape[i] > 1) by_stride.emplace_back(strides[i], shape[i]);
  }
  std::sort(by_stride.begin(), by_stride.end());
  int64_t expected = 1;
  for (const auto& [stride, size] : by_stride) {
    if (stride != expected) return false;
    expected *= size;
  }
  return true;
}

}  // namespace

struct CheckpointReader::Impl {
  /// Elements of one tensor in one file.
  struct Slice {
    int64_t offset;
    int64_t elements;
    const CheckedFile* file;
    uint64_t place;  ///< in the file, in bytes
  };

  /// Opens that of a folder. If another job has removed it meanwhile (keep=), there is a newer one.
  static std::unique_ptr<Impl> at(const std::string& path) {
    for (;;) {
      const std::string folder = checkpoint::find_checkpoint(path);
      try {
        return std::make_unique<Impl>(folder);
      } catch (const CheckpointError&) {
        if (folder == path || std::filesystem::exists(folder)) throw;
      }
    }
  }

  explicit Impl(std::string found) : folder(std::move(found)) {
    index = CheckpointIndex::read(folder + "/" + checkpoint::kIndexName);
    for (const FileRecord& record : index.files) {
      files.push_back(std::make_unique<CheckedFile>(folder, record));
      try {
        add_slices(*files.back());
      } catch (const FormatError& error) {
        throw_damaged(files.back()->path(), error.what());
      } catch (const JsonError& error) {
        throw_damaged(files.back()->path(), error.what());
      }
    }
    for (auto& [key, own] : slices) check_complete(key, own);
  }

  void add_slices(const CheckedFile& file) {
    constexpr uint64_t kLengthBytes = 8;
    std::string first(std::min(kLengthBytes, file.bytes()), '\0');
    file.read(0, first.size(), reinterpret_cast<std::byte*>(first.data()));
    const uint64_t length = SafetensorsHeader::length_of(first, file.bytes());
    std::string text(length, '\0');
    file.read(kLengthBytes, length, reinterpret_cast<std::byte*>(text.data()));
    const uint64_t data = kLengthBytes + length;
    const auto header = SafetensorsHeader::parse(text, file.bytes() - data);
    const auto ours = header.metadata.find("farandole");
    if (ours == header.metadata.end()) throw FormatError("it was not written by Farandole");
    const Json described = Json::parse(ours->second).at("slices");
    for (const StoredTensor& tensor : header.tensors) {
      add_slice(file, tensor, described.at(tensor.name), data);
    }
  }

  void add_slice(const CheckedFile& file, const StoredTensor& tensor, const Json& described,
                 uint64_t data) {
    const auto dtype = checkpoint::dtype_named(tensor.dtype);
    if (!dtype) throw FormatError("'" + tensor.name + "' has the unknown dtype " + tensor.dtype);
    Entry entry{*dtype, numbers_of(described.at("shape")), numbers_of(described.at("strides"))};
    const int64_t elements = elements_of(tensor.shape);
    const int64_t offset = described.at("offset").integer("an offset");
    const int64_t whole = elements_of(entry.shape);
    if (entry.strides.size() != entry.shape.size() || !are_dense(entry.shape, entry.strides)) {
      throw FormatError("'" + tensor.name + "' has strides that do not fit its shape");
    }
    if (offset < 0 || offset > whole || elements > whole - offset) {
      throw FormatError("'" + tensor.name + "' has elements outside of its shape");
    }
    const auto [found, is_new] = entries.try_emplace(tensor.name, entry);
    if (!is_new && (found->second.dtype != entry.dtype || found->second.shape != entry.shape ||
                    found->second.strides != entry.strides)) {
      throw FormatError("'" + tensor.name + "' has another dtype or shape in another file");
    }
    slices[tensor.name].push_back({offset, elements, &file, data + tensor.begin});
  }

  /// Several ranks may have the same elements.
  void check_complete(const std::string& key, std::vector<Slice>& own) const {
    std::sort(own.begin(), own.end(), [](const Slice& a, const Slice& b) {
      return std::pair(a.offset, -a.elements) < std::pair(b.offset, -b.elements);
    });
    int64_t covered = 0;
    for (const Slice& slice : own) {
      if (slice.offset > covered) break;
      covered = std::max(covered, slice.offset + slice.elements);
    }
    const int64_t whole = elements_of(entries.at(key).shape);
    if (covered == whole) return;
    throw CheckpointError("checkpoint-gap",
                          "the checkpoint at '" + folder + "' lacks a part of '" + key + "'.",
                          "its files have " + std::to_string(covered) + " of " +
                              std::to_string(whole) + " elements from the start.",
                          "restore the missing file, or load another checkpoint.");
  }

  const Entry& entry(const std::string& key) const {
    const auto found = entries.find(key);
    if (found != entries.end()) return found->second;
    throw InvalidArgument(
        "checkpoint-no-tensor", "the checkpoint at '" + folder + "' was asked for '" + key + "'.",
        "it has no tensor of that name; entries() has all names.", "ask for one of them.");
  }

  /// Throws InvalidArgument.
  void check_range(const std::string& key, int64_t offset, int64_t elements) const {
    const int64_t whole = elements_of(entry(key).shape);
    if (offset >= 0 && elements >= 0 && offset <= whole && elements <= whole - offset) return;
    throw InvalidArgument(
        "checkpoint-range",
        "the checkpoint at '" + folder + "' was asked for elements " + std::to_string(offset) +
            " to " + std::to_string(offset + elements) + " of '" + key + "'.",
        "it has " + std::to_string(whole) + " elements.", "ask for elements that exist.");
  }

  /// Calls `use(file, place, bytes, distance)` for what files have of some elements: bytes from a
  /// place on, which are so many bytes behind the first element.
  template <typename Use>
  void for_each_slice(const std::string& key, int64_t offset, int64_t elements,
                      const Use& use) const {
    const auto element_bytes = c10::elementSize(entry(key).dtype);
    const auto bytes = [&](int64_t count) { return static_cast<uint64_t>(count) * element_bytes; };
    for (const Slice& slice : slices.at(key)) {
      const int64_t begin = std::max(offset, slice.offset);
      const int64_t end = std::min(offset + elements, slice.offset + slice.elements);
      if (begin >= end) continue;
      use(*slice.file, slice.place + bytes(begin - slice.offset), bytes(end - begin),
          bytes(begin - offset));
    }
  }

  void read(const std::string& key, int64_t offset, const at::Tensor& into) const {
    auto* const to = static_cast<std::byte*>(into.mutable_data_ptr());
    for_each_slice(key, offset, into.numel(),
                   [to](const CheckedFile& file, uint64_t place, uint64_t bytes,
                        uint64_t distance) { file.read(place, bytes, to + distance); });
  }

  void check(const std::string& key, int64_t offset, int64_t elements,
             CheckedFile::Share share) const {
    for_each_slice(key, offset, elements,
                   [share](const CheckedFile& file, uint64_t place, uint64_t bytes,
                           uint64_t /*distance*/) { file.check(place, bytes, share); });
  }

  std::string folder;
  CheckpointIndex index;
  std::vector<std::unique_ptr<CheckedFile>> files;
  std::map<std::string, Entry> entries;
  std::map<std::string, std::vector<Slice>> slices;  ///< ascending offsets
};

CheckpointReader::CheckpointReader(const std::string& path) : impl_(Impl::at(path)) {}
CheckpointReader::~CheckpointReader() = default;

const std::string& CheckpointReader::folder() const { return impl_->folder; }
const std::map<std::string, CheckpointReader::Entry>& CheckpointReader::entries() const {
  return impl_->entries;
}
const std::string& CheckpointReader::values() const { return impl_->index.values; }
int CheckpointReader::world_size() const { return impl_->index.world_size; }

at::Tensor CheckpointReader::read(const std::string& key, int64_t offset, int64_t elements) const {
  impl_->check_range(key, offset, elements);
  at::Tensor result = checkpoint::new_memory(elements, impl_->entry(key).dtype);
  impl_->read(key, offset, result);
  return result;
}

at::Tensor CheckpointReader::read(const std::string& key) const {
  const Entry& entry = impl_->entry(key);
  return read(key, 0, elements_of(entry.shape)).as_strided(entry.shape, entry.strides);
}

void CheckpointReader::read_into(const std::string& key, int64_t offset,
                                 const at::Tensor& into) const {
  impl_->check_range(key, offset, into.numel());
  const at::ScalarType dtype = impl_->entry(key).dtype;
  const bool has_plain_bits = !into.is_conj() && !into.is_neg();
  if (into.is_cpu() && into.scalar_type() == dtype && has_plain_bits) {
    impl_->read(key, offset, into);
    if (!into.is_inference()) into.unsafeGetTensorImpl()->bump_version();  // as copy_() does
    return;
  }
  const int64_t together = std::min(kConvertedTogether, into.numel());
  const at::Tensor space = at::empty({together}, dtype);
  for (int64_t begin = 0; begin < into.numel(); begin += together) {
    const int64_t count = std::min(together, into.numel() - begin);
    const at::Tensor here = space.narrow(0, 0, count);
    impl_->read(key, offset + begin, here);
    into.narrow(0, begin, count).copy_(here);
  }
}

void CheckpointReader::read_into(const std::string& key, const at::Tensor& into) const {
  const Entry& entry = impl_->entry(key);
  if (into.sizes() != at::IntArrayRef(entry.shape)) {
    throw InvalidArgument("checkpoint-shape",
                          "the checkpoint at '" + impl_->folder + "' was asked to read '" + key +
                              "' into the shape " + c10::str(into.sizes()) + ".",
                          "it has the shape " + c10::str(at::IntArrayRef(entry.shape)) + ".",
                          "pass a tensor of that shape.");
  }
  bool lies_alike = true;
  for (size_t dim = 0; dim < entry.shape.size(); ++dim) {
    if (entry.shape[dim] > 1 && entry.strides[dim] != into.strides()[dim]) lies_alike = false;
  }
  if (lies_alike) {
    read_into(key, 0, into.as_strided({into.numel()}, {1}));
  } else {
    into.copy_(read(key));
  }
}

void CheckpointReader::check(const std::string& key, int64_t offset, int64_t elements) const {
  impl_->check_range(key, offset, elements);
  impl_->check(key, offset, elements, {});
}

void CheckpointReader::check(const std::string& key, int rank, int world_size) const {
  impl_->check(key, 0, elements_of(impl_->entry(key).shape), {rank, world_size});
}

}  // namespace farandole
