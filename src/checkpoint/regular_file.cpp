// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/regular_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "checkpoint/checked_file.h"
#include "checkpoint/file_error.h"

namespace farandole::checkpoint {

int open_regular_file(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) throw_file_error(path, "could not be opened", errno);
  struct stat status {};
  const int error_number = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  if (error_number == 0 && S_ISREG(status.st_mode)) return descriptor;
  ::close(descriptor);
  if (error_number != 0) throw_file_error(path, "could not be opened", error_number);
  throw_damaged(path, "it is a folder, a pipe or a device, and not a file");
}

std::string text_of_file(const std::string& path) {
  const int descriptor = open_regular_file(path);
  std::string text;
  char part[4096];
  ssize_t got = 0;
  do {
    got = ::read(descriptor, part, sizeof(part));
    if (got > 0) text.append(part, static_cast<size_t>(got));
  } while (got > 0 || (got < 0 && errno == EINTR));
  const int error_number = got < 0 ? errno : 0;
  ::close(descriptor);
  if (error_number != 0) throw_file_error(path, "could not be read", error_number);
  return text;
}

}  // namespace farandole::checkpoint
