// SPDX-License-Identifier: Apache-2.0
#include "debugger/record_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "checkpoint/dtype_names.h"
#include "checkpoint/format/safetensors.h"
#include "comm/write_all.h"
#include "farandole/error.h"

namespace farandole::debugger {
namespace {

using checkpoint::Json;
namespace fs = std::filesystem;

constexpr int64_t kFormat = 1;
constexpr int64_t kRotationBytes = 10'000'000;
constexpr const char* kLines = ".jsonl";

[[noreturn]] void throw_file_error(const std::string& path, const std::string& what, int number) {
  throw SystemError("debugger-file", "the debugger's '" + path + "' " + what + ".",
                    std::generic_category().message(number) + ".",
                    "save into a folder that this user may write, on a disk with space.");
}

fs::path made_folder(const std::string& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) throw_file_error(folder, "could not be made", error.value());
  return folder;
}

std::vector<fs::path> files_of(const std::string& folder) {
  std::vector<fs::path> found;
  std::error_code none;  // yet
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().extension() == kLines) found.push_back(entry.path());
  }
  return found;
}

/// "worker_0.0012.jsonl": 12; -1 for files of other names.
int number_in(const fs::path& path, const std::string& worker) {
  const std::string name = path.filename().string();
  int number = -1;
  if (name.rfind(worker + ".", 0) != 0) return number;
  std::sscanf(name.c_str() + worker.size(), ".%d.jsonl", &number);
  return number;
}

/// Whether a process that lives holds it: a rank of this run, which may be a step ahead already.
bool is_written(const fs::path& path) {
  const comm::PrivateDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  return file.valid() && ::flock(file.get(), LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
}

void write_to(const comm::PrivateDescriptor& descriptor, const void* data, size_t bytes,
              const std::string& path) {
  const int error = comm::write_all(descriptor, data, bytes);
  if (error != 0) throw_file_error(path, "could not be written", error);
}

}  // namespace

RecordFile::RecordFile(const std::string& folder, std::string worker, int workers)
    : folder_(made_folder(folder + "/tensors")), worker_(std::move(worker)), workers_(workers) {
  for (const fs::path& each : files_of(folder_)) {
    number_ = std::max(number_, number_in(each, worker_) + 1);
  }
  begin_file();
}

std::string RecordFile::path(const std::string& suffix) const {
  std::array<char, 16> number{};
  std::snprintf(number.data(), number.size(), ".%04d", number_);
  return folder_ + "/" + worker_ + number.data() + suffix;
}

/// Makes a file that is locked and has its header before a reader can find it.
void RecordFile::begin_file() {
  const std::string hidden = path(".new");
  const int flags = O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC;
  const int descriptor = ::open(hidden.c_str(), flags, 0666);
  if (descriptor < 0) throw_file_error(hidden, "could not be made", errno);
  comm::PrivateDescriptor made(descriptor);
  const bool is_locked = ::flock(made.get(), LOCK_EX) == 0;  // some file systems have no locks
  bytes_ = 0;
  std::swap(file_, made);  // the one before is closed when there is a new one to find
  const Json::Object head{{"format", kFormat},
                          {"worker", worker_},
                          {"workers", static_cast<int64_t>(workers_)},
                          {"locked", is_locked}};
  write(head);
  if (std::rename(hidden.c_str(), path(kLines).c_str()) != 0) {
    throw_file_error(hidden, "could not be renamed", errno);
  }
}

void RecordFile::write(const Json& record) {
  const std::string line = record.dump() + "\n";
  const auto bytes = static_cast<int64_t>(line.size());
  if (bytes_ > 0 && bytes_ + bytes > kRotationBytes) {
    ++number_;
    begin_file();
  }
  write_to(file_, line.data(), line.size(), path(kLines));
  bytes_ += bytes;
}

std::string RecordFile::write_raw(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  checkpoint::SafetensorsHeader header;
  std::vector<at::Tensor> elements;
  uint64_t begin = 0;
  for (const auto& [name, tensor] : tensors) {
    elements.push_back(tensor.detach().to(at::kCPU).contiguous());
    const uint64_t end = begin + elements.back().nbytes();
    header.tensors.push_back({name, checkpoint::name_of_dtype(tensor.scalar_type(), name),
                              tensor.sizes().vec(), begin, end});
    begin = end;
  }
  const std::string to = path("." + std::to_string(++raw_files_) + ".safetensors");
  const int descriptor = ::open(to.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_file_error(to, "could not be made", errno);
  const comm::PrivateDescriptor file(descriptor);
  const std::string head = header.compose();
  write_to(file, head.data(), head.size(), to);
  for (const at::Tensor& each : elements) {
    write_to(file, each.const_data_ptr(), each.nbytes(), to);
  }
  return fs::path(to).filename();
}

void RecordFile::close() {
  if (!file_.valid()) return;
  write(Json::Object{{"end", true}});
  file_.reset();
}

std::map<std::string, int64_t> last_steps(const std::string& folder) {
  std::map<std::string, int64_t> last;
  const auto reach = [&](const std::string& mode, int64_t step) {
    const auto [entry, is_new] = last.emplace(mode, step);
    entry->second = std::max(entry->second, step);
  };
  for (const fs::path& path : files_of(folder + "/tensors")) {
    if (is_written(path)) continue;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      try {
        const Json record = Json::parse(line);
        const Json* const mode = record.find("mode");
        const Json* const step = record.find("step");
        const Json* const all = record.find("global");
        if (mode == nullptr || step == nullptr || all == nullptr) continue;
        reach(mode->string(), step->integer());
        reach("GLOBAL", all->integer());
      } catch (const checkpoint::JsonError&) {  // a line that is cut or damaged
      }
    }
  }
  return last;
}

}  // namespace farandole::debugger
