// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>

#include "checkpoint/checked_file.h"
#include "checkpoint/file_error.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/regular_file.h"
#include "farandole/error.h"
#include "farandole/version.h"
#include "log.h"

namespace farandole::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kFormatVersion = 1;
constexpr const char* kLatest = "latest";
constexpr const char* kTemporary = "tmp-";
constexpr const char* kReplaced = ".replaced";

[[noreturn]] void throw_none(const std::string& path) {
  throw CheckpointError(
      "checkpoint-missing", "there is no checkpoint at '" + path + "'.",
      "neither it nor a folder in it has an index.json, which a save writes last.",
      "check the path; a save that was killed leaves only a tmp- folder, which "
      "nothing can be loaded from.");
}

/// Throws CheckpointError if there can be none at `path`, which is a wrong one then.
void check_can_be_folder(const fs::path& path) {
  std::error_code error;
  fs::path lowest = fs::absolute(path, error).lexically_normal();
  while (lowest.has_relative_path() && !fs::exists(lowest, error)) lowest = lowest.parent_path();
  if (error || fs::is_directory(lowest, error)) return;
  throw CheckpointError("checkpoint-no-folder",
                        "there can be no checkpoint at '" + path.string() + "'.",
                        "'" + lowest.string() + "' is a file, and a checkpoint is a folder.",
                        "pass the folder that was passed to save_checkpoint(), or that of one "
                        "checkpoint; for a file of torch.save(), use torch.load() or "
                        "torch::load().");
}

/// Throws CheckpointError if that cannot be told: what cannot be read is not taken for nothing.
bool is_checkpoint(const fs::path& path) {
  std::error_code error;
  const bool is_there = fs::exists(path / kIndexName, error);
  const bool is_none =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !is_none) throw_file_error(path.string(), "could not be read", error.value());
  return is_there;
}

/// As "tmp-step-00001000-4711-0123456789abcdef": the process and random bits.
std::string temporary_name(const std::string& name) {
  std::random_device random;
  char bits[17];
  std::snprintf(bits, sizeof(bits), "%08x%08x", random(), random());
  return kTemporary + name + "-" + std::to_string(::getpid()) + "-" + bits;
}

/// Whether it is such a name, and not one that the program has given something of its own.
bool is_temporary(const std::string& name) {
  constexpr size_t kBits = 16;
  constexpr const char* kHexadecimal = "0123456789abcdef";
  constexpr const char* kDecimal = "0123456789";
  if (name.rfind(kTemporary, 0) != 0) return false;
  const size_t bits = name.rfind('-') + 1;
  if (name.size() - bits != kBits) return false;
  if (name.find_first_not_of(kHexadecimal, bits) != std::string::npos) return false;
  const size_t process = name.rfind('-', bits - 2) + 1;
  return process >= std::string(kTemporary).size() && process < bits - 1 &&
         name.find_first_not_of(kDecimal, process) == bits - 1;
}

/// Removes a checkpoint. Under the name that it gets first it is none any more, and goes with the
/// next save if not now.
void discard(const std::string& path) {
  const std::string aside = fs::path(path).parent_path().string() + "/" + temporary_name("old");
  if (::rename(path.c_str(), aside.c_str()) == 0) remove_folder(aside);
}

/// Whether `aside` is what exchange() moved away from `path`, and not a checkpoint that the program
/// has given that name.
bool is_replaced(const std::string& aside, const std::string& path) {
  try {
    if (!is_checkpoint(aside)) return false;
    const std::string name = CheckpointIndex::read(aside + "/" + kIndexName).name;
    return name == fs::path(path).filename().string();
  } catch (const CheckpointError&) {  // damaged, or of another program
    return false;
  }
}

/// Removes what a save has left that was killed in exchange() to `path`, which is in place.
void discard_replaced(const std::string& path) {
  if (is_replaced(path + kReplaced, path)) discard(path + kReplaced);
}

/// Replaces `to` by `from` in one step where the file system can; else `to` is away for a moment.
void exchange(const std::string& from, const std::string& to) {
  if (::renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) return;
  discard_replaced(to);
  const std::string aside = to + kReplaced;
  if (::rename(to.c_str(), aside.c_str()) != 0) throw_file_error(to, "could not be moved", errno);
  if (::rename(from.c_str(), to.c_str()) != 0) {
    const int error_number = errno;
    const bool is_back = ::rename(aside.c_str(), to.c_str()) == 0;
    throw_file_error(to, is_back ? "could not be replaced" : "could not be replaced or moved back",
                     error_number);
  }
  ::rename(aside.c_str(), from.c_str());
}

/// Where a save was killed in exchange(): the checkpoint that it has moved aside comes back, unless
/// the new one is in place already.
void put_back_replaced(const std::string& aside) {
  const std::string path = aside.substr(0, aside.size() - std::string(kReplaced).size());
  if (!is_replaced(aside, path)) return;
  std::error_code error;
  if (!fs::exists(path, error) && !error) {
    ::rename(aside.c_str(), path.c_str());
  } else if (is_checkpoint(path)) {
    discard(aside);
  }
}

/// The file that names the newest. What takes space on the disk comes before it is put in place.
class Latest {
 public:
  explicit Latest(const std::string& root)
      : path_(root + "/" + kLatest), temporary_(root + "/" + temporary_name(kLatest)) {}
  ~Latest() { ::unlink(temporary_.c_str()); }  // unless it is in place
  Latest(const Latest&) = delete;
  Latest& operator=(const Latest&) = delete;

  void write(const std::string& name) const { write_text(temporary_, name + "\n"); }
  void put_in_place() const {
    if (::rename(temporary_.c_str(), path_.c_str()) == 0) return;
    throw_file_error(path_, "could not be replaced", errno);
  }

 private:
  const std::string path_;
  const std::string temporary_;
};

constexpr const char* kSumMember = ",\"crc32c\":";

/// Throws JsonError unless the text ends with its checksum.
void check_sum(const std::string& text) {
  const size_t end = text.rfind(kSumMember);
  if (end == std::string::npos) throw JsonError("it does not end with its checksum");
  const std::string expected = kSumMember + std::to_string(crc32c(text.data(), end)) + "}\n";
  if (text.substr(end) != expected)
    throw JsonError("it has another checksum than when it was saved");
}

/// What the file `latest` in `root` names; empty if there is no such file, or if it names something
/// that is not in `root`.
std::string name_of_latest(const std::string& root) {
  const fs::path path = fs::path(root) / kLatest;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return "";
  const std::string text = text_of_file(path.string());
  const std::string name = text.substr(0, text.find('\n'));
  if (name != "." && name != ".." && name.find('/') == std::string::npos) return name;
  log(LogLevel::kWarning, "'" + path.string() +
                              "' is ignored: it leads out of its folder. The newest checkpoint in "
                              "the folder is loaded.");
  return "";
}

int64_t number_of(const std::string& folder) {
  return CheckpointIndex::read(folder + "/" + kIndexName).number;
}

bool is_copy(const std::string& folder) {
  const std::string name = CheckpointIndex::read(folder + "/" + kIndexName).name;
  const std::string own = fs::path(folder).filename().string();
  return !name.empty() && own != name && own != name + kReplaced;
}

}  // namespace

/// Its last member is the checksum of all before it.
std::string CheckpointIndex::to_text() const {
  Json::Array records;
  for (const FileRecord& file : files) records.push_back(file.to_json());
  std::string text = Json(Json::Object{{"format_version", kFormatVersion},
                                       {"farandole", version()},
                                       {"number", number},
                                       {"name", name},
                                       {"world_size", int64_t{world_size}},
                                       {"files", std::move(records)},
                                       {"values", values}})
                         .dump();
  text.pop_back();
  return text + kSumMember + std::to_string(crc32c(text.data(), text.size())) + "}\n";
}

CheckpointIndex CheckpointIndex::read(const std::string& path) {
  const std::string text = text_of_file(path);
  try {
    check_sum(text);
    const Json json = Json::parse(text);
    const int64_t format = json.at("format_version").integer("format_version");
    if (format > kFormatVersion) {
      throw CheckpointError("checkpoint-newer",
                            "the checkpoint's '" + path + "' is of a newer format.",
                            "it has format " + std::to_string(format) + ", and this Farandole " +
                                version() + " reads up to " + std::to_string(kFormatVersion) + ".",
                            "load it with the Farandole that saved it (" +
                                json.at("farandole").string() + "), or a newer one.");
    }
    CheckpointIndex index;
    index.number = json.at("number").integer("the number");
    if (const Json* const name = json.find("name")) index.name = name->string("the name");
    index.world_size = static_cast<int>(json.at("world_size").integer("the world size"));
    for (const Json& file : json.at("files").array("files")) {
      index.files.push_back(FileRecord::from_json(file));
    }
    index.values = json.at("values").string("values");
    return index;
  } catch (const JsonError& error) {
    throw_damaged(path, error.what());
  }
}

std::string make_temporary(const std::string& root, const std::string& name) {
  if (is_checkpoint(root)) {
    throw CheckpointError(
        "checkpoint-within", "a checkpoint was to be saved into '" + root + "'.",
        "that is the folder of one checkpoint, and a checkpoint inside it would not be found.",
        "pass the folder of all checkpoints, which is above it.");
  }
  std::error_code error;
  fs::create_directories(root, error);
  if (error) throw_file_error(root, "could not be made", error.value());
  const std::string path = root + "/" + temporary_name(name);
  fs::create_directory(path, error);
  if (error) throw_file_error(path, "could not be made", error.value());
  return path;
}

void remove_leftovers(const std::string& root) noexcept {
  try {
    std::vector<std::string> left;
    std::vector<std::string> replaced;
    std::error_code error;
    for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename().string();
      if (is_temporary(name)) left.push_back(at->path().string());
      if (fs::path(name).extension() == kReplaced) replaced.push_back(at->path().string());
    }
    for (const std::string& each : left) remove_folder(each);
    for (const std::string& each : replaced) put_back_replaced(each);
  } catch (...) {  // they stay; nothing can be loaded from them
  }
}

int64_t next_number(const std::string& root) {
  const std::vector<std::string> present = checkpoints_in(root);
  return present.empty() ? 1 : number_of(present.back()) + 1;
}

void commit(const std::string& root, const std::string& temporary, const std::string& name,
            const CheckpointIndex& index, bool is_newest, bool& is_in_place) {
  const Latest latest(root);
  if (is_newest) latest.write(name);
  write_text(temporary + "/" + kIndexName, index.to_text());
  sync_folder(temporary);
  const std::string path = root + "/" + name;
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    if (errno != EEXIST && errno != ENOTEMPTY) {
      throw_file_error(path, "could not be put in place", errno);
    }
    exchange(temporary, path);
    is_in_place = true;
    sync_folder(root);
    remove_folder(temporary);  // the one that was replaced
  }
  is_in_place = true;
  if (is_newest) latest.put_in_place();
  sync_folder(root);
  discard_replaced(path);
}

void remove_old(const std::string& root, int keep) {
  std::vector<std::string> present = checkpoints_in(root);
  present.erase(std::remove_if(present.begin(), present.end(), is_copy), present.end());
  const size_t kept = std::min(present.size(), static_cast<size_t>(keep));
  present.resize(present.size() - kept);
  for (const std::string& each : present) discard(each);
}

void remove_folder(const std::string& path) noexcept {
  try {
    std::error_code error;
    fs::remove_all(path, error);
  } catch (...) {  // it stays; nothing can be loaded from it
  }
}

std::vector<std::string> checkpoints_in(const std::string& root) {
  std::vector<std::pair<int64_t, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator at(root, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    // A link of this name may lead out of the folder.
    if (name == kLatest || name.rfind(kTemporary, 0) == 0 || !is_checkpoint(at->path())) continue;
    try {
      found.emplace_back(number_of(at->path().string()), at->path().string());
    } catch (const CheckpointError& damaged) {  // or of another program
      log(LogLevel::kWarning, std::string("a checkpoint is not counted: ") + damaged.what());
    }
  }
  const bool is_none =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !is_none) throw_file_error(root, "could not be read", error.value());
  std::sort(found.begin(), found.end());
  std::vector<std::string> paths;
  for (auto& [number, path] : found) paths.push_back(std::move(path));
  return paths;
}

bool has_checkpoint(const std::string& path) {
  if (is_checkpoint(path) || !checkpoints_in(path).empty()) return true;
  check_can_be_folder(path);
  std::error_code error;
  if (!fs::exists(fs::path(path) / ".metadata", error)) return false;
  throw CheckpointError(
      "checkpoint-of-torch",
      "the checkpoint at '" + path + "' is one of torch.distributed.checkpoint.",
      "it has a .metadata file and no index.json; only Python's load_checkpoint() reads these.",
      "load it and save it again in Python, or pass the folder of save_checkpoint().");
}

std::string find_checkpoint(const std::string& path) {
  if (is_checkpoint(path)) return path;
  const std::string name = name_of_latest(path);
  if (!name.empty() && is_checkpoint(path + "/" + name)) return path + "/" + name;
  const std::vector<std::string> present = checkpoints_in(path);
  if (present.empty()) check_can_be_folder(path);
  if (present.empty()) throw_none(path);
  return present.back();
}

}  // namespace farandole::checkpoint
