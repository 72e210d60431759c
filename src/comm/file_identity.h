// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <cerrno>

namespace farandole::comm {

/// Which file a descriptor stands for. A program may close descriptors that it has not opened, as
/// os.closerange() does. Their numbers then stand for nothing, or for files that it opens later.
struct FileIdentity {
  dev_t device = 0;
  ino_t number = 0;  ///< eventfds share one with each other; before Linux 6.9 pidfds do, too

  /// That of no file if `descriptor` stands for none. System calls alone. statx() with DONT_SYNC
  /// first: fstat() on NFS waits until all that was written to the file has reached the server.
  static FileIdentity of(int descriptor) {
    struct statx told {};
    if (descriptor >= 0 &&
        ::statx(descriptor, "", AT_EMPTY_PATH | AT_STATX_DONT_SYNC, STATX_INO, &told) == 0) {
      return {makedev(told.stx_dev_major, told.stx_dev_minor), told.stx_ino};
    }
    struct stat status {};
    if (descriptor < 0 || ::fstat(descriptor, &status) != 0) return {};
    return {status.st_dev, status.st_ino};
  }
  bool operator==(const FileIdentity& other) const {
    return device == other.device && number == other.number;
  }
};

/// A descriptor of the same file, which is not that of a standard stream: where the program has
/// closed those, their numbers are the next to be given out, and what is written to standard error
/// would end in the file. Closes `descriptor` if it is one. -1, and errno, if there is none left.
inline int above_standard_streams(int descriptor) {
  if (descriptor < 0 || descriptor > STDERR_FILENO) return descriptor;
  const int moved = ::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return moved;
}

}  // namespace farandole::comm
