// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <mutex>
#include <system_error>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/file_error.h"
#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

std::string file_in(const std::string& folder) { return folder + "/.writer"; }

int open_file(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) throw_file_error(folder, "could not be made", error.value());
  const std::string path = file_in(folder);
  const int descriptor = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (descriptor < 0) throw_file_error(path, "could not be made", errno);
  return descriptor;
}

/// False where the file system knows no locks.
bool lock(int descriptor, const std::string& folder) {
  if (::flock(descriptor, LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) {
    throw CheckpointError(
        "checkpoint-in-use", "checkpoints in '" + folder + "' are being saved by another writer.",
        "another job, or a group of other ranks of this one, has saved there and is still alive.",
        "save to a folder of its own for each job, or end the other one first.");
  }
  return false;
}

}  // namespace

std::shared_ptr<FolderLock> FolderLock::of(const std::string& folder) {
  static std::mutex mutex;
  static auto* const locks = new std::map<std::string, std::weak_ptr<FolderLock>>;
  const std::unique_lock<std::mutex> guard(mutex);
  if (auto known = (*locks)[folder].lock()) {
    if (known->is_in(folder)) return known;
  }
  const std::shared_ptr<FolderLock> made(new FolderLock(folder));
  if (made->is_held()) remove_leftovers(folder);
  (*locks)[folder] = made;
  return made;
}

bool FolderLock::is_in(const std::string& folder) const {
  struct stat own = {};
  struct stat there = {};
  if (::fstat(descriptor_.get(), &own) != 0) return false;
  if (::stat(file_in(folder).c_str(), &there) != 0) return errno != ENOENT;
  return own.st_dev == there.st_dev && own.st_ino == there.st_ino;
}

FolderLock::FolderLock(const std::string& folder)
    : descriptor_(open_file(folder)), is_held_(lock(descriptor_.get(), folder)) {}

}  // namespace farandole::checkpoint
