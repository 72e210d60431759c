// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/writers.h"

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <utility>
#include <vector>

namespace farandole::checkpoint {
namespace {

constexpr size_t kMost = 4;  // writers of a rank; a program may give each checkpoint a folder

struct Kept {
  std::string folder;
  Group group;
  std::shared_ptr<CheckpointWriter> writer;
};

/// Ranks may be threads of one process.
struct Registry {
  std::mutex mutex;
  std::vector<Kept> writers;  ///< the oldest first
};

/// Never destroyed: the end of the program empties it, before destructors of what saves may need.
Registry& registry() {
  static auto* const registry = new Registry;
  return *registry;
}

void wait_for_all() {
  Registry& all = registry();
  const std::unique_lock<std::mutex> lock(all.mutex);
  all.writers.clear();
}

/// The writer that there is; otherwise takes out what has to go before another one is made.
std::shared_ptr<CheckpointWriter> find(const std::string& folder, const Group& group,
                                       std::vector<Kept>& superseded) {
  Registry& all = registry();
  const std::unique_lock<std::mutex> lock(all.mutex);
  size_t of_rank = 0;
  for (const Kept& each : all.writers) {
    if (each.group == group && each.folder == folder) return each.writer;
    if (each.writer->rank() == group->getRank()) ++of_rank;
  }
  for (auto each = all.writers.begin(); each != all.writers.end();) {
    const bool is_own = each->writer->rank() == group->getRank();
    // A folder has one writer; and what follows is the same on all ranks.
    if (is_own && (each->folder == folder || of_rank >= kMost)) {
      superseded.push_back(std::move(*each));
      each = all.writers.erase(each);
      --of_rank;
    } else {
      ++each;
    }
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<CheckpointWriter> writer_of(const std::string& path, const Group& group) {
  [[maybe_unused]] static const int registered = std::atexit(wait_for_all);
  const std::string folder = std::filesystem::weakly_canonical(path).string();
  const Group ranks = group ? group : default_group();
  {
    std::vector<Kept> superseded;  // which wait for their saves
    if (auto known = find(folder, ranks, superseded)) return known;
  }
  auto writer = std::make_shared<CheckpointWriter>(folder, ranks);
  Registry& all = registry();
  const std::unique_lock<std::mutex> lock(all.mutex);
  all.writers.push_back({folder, ranks, writer});
  return writer;
}

}  // namespace farandole::checkpoint
