// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/writers.h"

#include <cstdlib>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

constexpr size_t kMost = 4;  // writers of a group; a program may give each checkpoint a folder

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

/// The path as all calls have it, whether the folder is there yet or not.
std::string whole_path(const std::string& path) {
  std::error_code error;
  std::filesystem::path whole = std::filesystem::absolute(path, error).lexically_normal();
  if (whole.filename().empty()) whole = whole.parent_path();  // after a slash at the end
  const std::filesystem::path resolved = std::filesystem::weakly_canonical(whole, error);
  return error ? whole.string() : resolved.string();
}

/// Throws InvalidArgument on all ranks if one has another path: all write where rank 0 says.
/// Links may lead to other places on other hosts. Collective.
void check_same_path(const CheckpointWriter& writer, const std::string& path,
                     const std::string& folder) {
  std::error_code error;
  const std::vector<std::string> given =
      writer.all_gather(std::filesystem::absolute(path, error).lexically_normal().string());
  const std::vector<std::string> resolved = writer.all_gather(folder);
  for (size_t rank = 1; rank < given.size(); ++rank) {
    if (given[rank] == given[0] || resolved[rank] == resolved[0]) continue;
    throw InvalidArgument(
        "checkpoint-paths-differ",
        "rank " + std::to_string(rank) + " got the path '" + given[rank] +
            "' for checkpoints, and rank 0 '" + given[0] + "'.",
        "all ranks save into one folder, and load from it.",
        "pass the same path on every rank: one that rank 0 has made, or that has a time in it, is "
        "broadcast first.");
  }
}

/// The writer that there is; otherwise takes out the one that has to go before another is made.
std::shared_ptr<CheckpointWriter> find(const std::string& folder, const Group& group,
                                       std::vector<Kept>& superseded) {
  Registry& all = registry();
  const std::unique_lock<std::mutex> lock(all.mutex);
  std::vector<std::vector<Kept>::iterator> of_group;
  for (auto each = all.writers.begin(); each != all.writers.end(); ++each) {
    if (each->group == group) of_group.push_back(each);
    if (each->group == group && each->folder == folder) return each->writer;
  }
  if (of_group.size() >= kMost) {  // the same on all ranks of the group
    superseded.push_back(std::move(*of_group.front()));
    all.writers.erase(of_group.front());
  }
  return nullptr;
}

}  // namespace

std::shared_ptr<CheckpointWriter> writer_of(const std::string& path, const Group& group) {
  [[maybe_unused]] static const int registered = std::atexit(wait_for_all);
  const std::string folder = whole_path(path);
  const Group ranks = group ? group : default_group();
  {
    std::vector<Kept> superseded;  // which wait for their saves
    if (auto known = find(folder, ranks, superseded)) return known;
  }
  auto writer = std::make_shared<CheckpointWriter>(folder, ranks);
  check_same_path(*writer, path, folder);
  Registry& all = registry();
  const std::unique_lock<std::mutex> lock(all.mutex);
  all.writers.push_back({folder, ranks, writer});
  return writer;
}

}  // namespace farandole::checkpoint
