// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/checked_file.h"
#include "checkpoint/file_error.h"

namespace farandole::checkpoint {

comm::shm::Descriptor open_regular_file(const std::string& path) {
  comm::shm::Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!descriptor.valid() || ::fstat(descriptor.get(), &status) != 0) {
    throw_file_error(path, "could not be opened", errno);
  }
  if (S_ISREG(status.st_mode)) return descriptor;
  throw_damaged(path, "it is a folder, a pipe or a device, and not a file");
}

std::string text_of_file(const std::string& path) {
  const comm::shm::Descriptor descriptor = open_regular_file(path);
  std::string text;
  char part[4096];
  ssize_t got = 0;
  do {
    got = ::read(descriptor.get(), part, sizeof(part));
    if (got > 0) text.append(part, static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  if (got < 0) throw_file_error(path, "could not be read", errno);
  return text;
}

}  // namespace farandole::checkpoint
