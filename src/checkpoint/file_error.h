// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farandole::checkpoint {

/// Throws CheckpointError: a system call failed with `error_number` on `path`. `what`: as "could
/// not be written".
[[noreturn]] void throw_file_error(const std::string& path, const std::string& what,
                                   int error_number);

}  // namespace farandole::checkpoint
