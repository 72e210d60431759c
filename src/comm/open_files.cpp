// SPDX-License-Identifier: Apache-2.0
#include "comm/open_files.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>

namespace farandole::comm {
namespace {

/// A program rarely makes one group alone: each wrapped model and optimizer has its own.
constexpr size_t kFewGroups = 4;
/// Of all descriptors: a program has files of its own.
constexpr size_t kLeastPart = 8;

}  // namespace

std::optional<OpenFiles> open_files() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return std::nullopt;
  DIR* const folder = ::opendir("/proc/self/fd");
  if (folder == nullptr) return std::nullopt;
  size_t entries = 0;
  while (::readdir(folder) != nullptr) ++entries;
  ::closedir(folder);
  constexpr size_t kOthers = 3;  // ".", ".." and the folder itself
  return OpenFiles{entries - std::min(entries, kOthers), static_cast<size_t>(limit.rlim_cur)};
}

std::string text_of_few_left(const std::string& group, size_t taken, const OpenFiles& now) {
  const size_t left = now.most - std::min(now.most, now.open);
  if (taken == 0 || left >= std::max(kFewGroups * taken, now.most / kLeastPart)) return "";
  return "group '" + group + "' took " + std::to_string(taken) +
         (taken == 1 ? " descriptor" : " descriptors") + ", and this process has " +
         std::to_string(now.open) + " of at most " + std::to_string(now.most) + " open: about " +
         std::to_string(left / taken) +
         " more groups like it fit. Raise the limit of open files (ulimit -n) before the start, or "
         "destroy groups that are not used any more.";
}

}  // namespace farandole::comm
