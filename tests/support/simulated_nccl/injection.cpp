// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/injection.h"

#include <mutex>
#include <vector>

namespace farandole::sim::nccl {
namespace {

struct Plan {
  std::mutex mutex;
  std::vector<Injection> waiting;  ///< guarded by mutex
};

Plan& plan() {
  static auto* made = new Plan;  // threads may use it while the process ends
  return *made;
}

}  // namespace

void inject(const Injection& injection) {
  const std::lock_guard<std::mutex> lock(plan().mutex);
  plan().waiting.push_back(injection);
}

void drop_injections() {
  const std::lock_guard<std::mutex> lock(plan().mutex);
  plan().waiting.clear();
}

std::optional<Injection> injected(const std::string& function, int rank) {
  const std::lock_guard<std::mutex> lock(plan().mutex);
  std::vector<Injection>& waiting = plan().waiting;
  for (auto each = waiting.begin(); each != waiting.end(); ++each) {
    const bool of_rank = each->rank < 0 || each->rank == rank;
    if (function != each->function || !of_rank || each->calls_before-- > 0) continue;
    const Injection found = *each;
    waiting.erase(each);
    return found;
  }
  return std::nullopt;
}

}  // namespace farandole::sim::nccl
