// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/file_error.h"

#include <cerrno>
#include <system_error>

#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

const char* fix_of(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT:
      return "free space there or raise the quota, or keep fewer checkpoints (keep=).";
    case EACCES:
    case EPERM:
    case EROFS:
      return "save where this user may write, and load what it may read.";
    case ENOENT:
      return "check the path; on a network file system wait until the folder is visible here.";
    default:
      return "look at the file system; what was saved before is unchanged.";
  }
}

}  // namespace

void throw_file_error(const std::string& path, const std::string& what, int error_number) {
  throw CheckpointError("checkpoint-file", "the checkpoint's '" + path + "' " + what + ".",
                        std::generic_category().message(error_number) + ".", fix_of(error_number));
}

}  // namespace farandole::checkpoint
