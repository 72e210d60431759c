// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/slice_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <set>

#include "checkpoint/dtype_names.h"
#include "checkpoint/file_error.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/format/safetensors.h"
#include "comm/shm/system/descriptor.h"
#include "comm/write_all.h"
#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

/// What is smaller than this is gathered in memory first.
constexpr size_t kDirect = 64 << 10;
/// Bytes that the disk gets at a time.
constexpr uint64_t kBegunTogether = 8 << 20;
/// Elements of an accelerator that are on the host at a time.
constexpr int64_t kCopiedTogether = 4 << 20;

/// A new file that is written from begin to end.
class NewFile {
 public:
  explicit NewFile(std::string path)
      : path_(std::move(path)),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)) {
    if (!descriptor_.valid()) throw_file_error(path_, "could not be made", errno);
  }

  void append(const void* data, size_t bytes) {
    const auto* from = static_cast<const std::byte*>(data);
    // Block by block, so that what is written is in the cache already.
    while (bytes > 0) {
      const size_t left = kChecksumBlock - bytes_ % kChecksumBlock;
      const size_t run = std::min<size_t>(bytes, left);
      append_in_block(from, run);
      from += run;
      bytes -= run;
    }
  }

  /// Waits until all is on the disk.
  FileRecord finish() {
    flush();
    if (bytes_ % kChecksumBlock != 0) checksums_.push_back(checksum_);
    if (::fsync(descriptor_.get()) != 0)
      throw_file_error(path_, "could not be brought to the disk", errno);
    return {"", bytes_, checksums_};
  }

 private:
  void append_in_block(const std::byte* data, size_t bytes) {
    checksum_ = crc32c(data, bytes, checksum_);
    bytes_ += bytes;
    if (bytes_ % kChecksumBlock == 0) {
      checksums_.push_back(checksum_);
      checksum_ = 0;
    }
    if (bytes < kDirect) {
      if (small_.size() + bytes > kChecksumBlock) flush();
      small_.insert(small_.end(), data, data + bytes);
    } else {
      flush();
      write(data, bytes);
      begin_to_disk();
    }
  }

  void flush() {
    write(small_.data(), small_.size());
    small_.clear();
  }

  /// Lets the disk work while the rest is written.
  void begin_to_disk() {
    const uint64_t end = bytes_ / kBegunTogether * kBegunTogether;
    if (end == begun_) return;
    // Only a hint: fsync() reports what fails.
    ::sync_file_range(descriptor_.get(), static_cast<off_t>(begun_),
                      static_cast<off_t>(end - begun_), SYNC_FILE_RANGE_WRITE);
    begun_ = end;
  }

  void write(const std::byte* data, size_t bytes) {
    const int error = comm::write_all(descriptor_, data, bytes);
    if (error != 0) throw_file_error(path_, "could not be written", error);
  }

  const std::string path_;
  const comm::shm::Descriptor descriptor_;
  uint64_t bytes_ = 0;
  uint64_t begun_ = 0;     ///< bytes that the disk is to write
  uint32_t checksum_ = 0;  ///< of the block that is not complete
  std::vector<uint32_t> checksums_;
  std::vector<std::byte> small_;
};

Json::Array array_of(const std::vector<int64_t>& numbers) {
  return {numbers.begin(), numbers.end()};
}

bool is_contiguous(const TensorSlice& slice) {
  int64_t stride = 1;
  for (size_t i = slice.shape.size(); i-- > 0;) {
    if (slice.shape[i] != 1 && slice.strides[i] != stride) return false;
    stride *= slice.shape[i];
  }
  return true;
}

SafetensorsHeader header_of(const std::vector<TensorSlice>& slices) {
  SafetensorsHeader header;
  Json::Object own;
  Json::Object of_dcp;
  uint64_t at = 0;
  for (const TensorSlice& slice : slices) {
    const int64_t whole = elements_of(slice.shape);
    const bool has_shape = slice.elements.numel() == whole && is_contiguous(slice);
    StoredTensor stored;
    stored.name = slice.key;
    stored.dtype = name_of_dtype(slice.elements.scalar_type(), slice.key);
    stored.shape = has_shape ? slice.shape : std::vector<int64_t>{slice.elements.numel()};
    stored.begin = at;
    stored.end = at += static_cast<uint64_t>(slice.elements.nbytes());
    const std::vector<int64_t> offsets(stored.shape.size(), 0);
    of_dcp.emplace_back(
        slice.key,
        Json::Object{{"saved_offsets", has_shape ? array_of(offsets) : Json::Array{slice.offset}}});
    own.emplace_back(slice.key, Json::Object{{"shape", array_of(slice.shape)},
                                             {"strides", array_of(slice.strides)},
                                             {"offset", slice.offset}});
    header.tensors.push_back(std::move(stored));
  }
  header.metadata["format"] = "pt";
  header.metadata["DCP_SHARDING_INFO"] = Json(std::move(of_dcp)).dump();
  header.metadata["farandole"] =
      Json(Json::Object{{"format_version", int64_t{1}}, {"slices", std::move(own)}}).dump();
  return header;
}

void append(NewFile& file, const at::Tensor& elements) {
  if (elements.is_cpu()) return file.append(elements.const_data_ptr(), elements.nbytes());
  for (int64_t begin = 0; begin < elements.numel(); begin += kCopiedTogether) {
    const int64_t count = std::min(kCopiedTogether, elements.numel() - begin);
    const at::Tensor here = elements.narrow(0, begin, count).cpu();
    file.append(here.const_data_ptr(), here.nbytes());
  }
}

}  // namespace

Json FileRecord::to_json() const {
  Json::Array sums;
  for (const uint32_t sum : checksums) sums.emplace_back(int64_t{sum});
  return Json::Object{
      {"name", name}, {"bytes", static_cast<int64_t>(bytes)}, {"crc32c", std::move(sums)}};
}

FileRecord FileRecord::from_json(const Json& json) {
  FileRecord record;
  record.name = json.at("name").string("a file's name");
  const int64_t bytes = json.at("bytes").integer("a file's size");
  if (bytes < 0) throw JsonError("a file's size is negative");
  record.bytes = static_cast<uint64_t>(bytes);
  for (const Json& sum : json.at("crc32c").array("checksums")) {
    record.checksums.push_back(static_cast<uint32_t>(sum.integer("a checksum")));
  }
  if (record.name.find('/') != std::string::npos) throw JsonError("a file is in another folder");
  if (record.checksums.size() != (record.bytes + kChecksumBlock - 1) / kChecksumBlock) {
    throw JsonError("a file has another number of checksums than of blocks");
  }
  return record;
}

FileRecord write_slices(const std::string& folder, const std::string& name,
                        const std::vector<TensorSlice>& slices) {
  const std::string header = header_of(slices).compose();
  NewFile file(folder + "/" + name);
  file.append(header.data(), header.size());
  for (const TensorSlice& slice : slices) append(file, slice.elements);
  FileRecord record = file.finish();
  record.name = name;
  return record;
}

void write_text(const std::string& path, const std::string& text) {
  NewFile file(path);
  file.append(text.data(), text.size());
  file.finish();
}

void sync_folder(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) throw_file_error(path, "could not be opened", errno);
  const int result = ::fsync(descriptor);
  const int error_number = errno;
  ::close(descriptor);
  // Some network file systems keep no order of names, and say so.
  if (result != 0 && error_number != EINVAL) {
    throw_file_error(path, "could not be brought to the disk", error_number);
  }
}

}  // namespace farandole::checkpoint
