// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/lent_memory.h"

#include <mutex>
#include <unordered_map>
#include <utility>

#include "comm/fork_safe_mutex.h"

namespace farandole {
namespace {

using LentMemory = std::unordered_map<void*, std::function<void()>>;

/// By address. Guarded by fork_safe_mutex<LentMemory>(); never destroyed: tensors may be freed
/// later.
LentMemory& lent_memory() {
  static auto* const lent = new LentMemory;
  return *lent;
}

void give_back(void* data) { give_back_lent(data); }

}  // namespace

at::DataPtr lend_memory(void* data, std::function<void()> take_back) {
  const std::lock_guard lock(comm::fork_safe_mutex<LentMemory>());
  lent_memory()[data] = std::move(take_back);
  return {data, data, give_back, at::Device(at::kCPU)};
}

bool give_back_lent(void* data) {
  std::function<void()> take_back;
  {
    const std::lock_guard lock(comm::fork_safe_mutex<LentMemory>());
    const auto found = lent_memory().find(data);
    if (found == lent_memory().end()) return false;
    take_back = std::move(found->second);
    lent_memory().erase(found);
  }
  take_back();
  return true;
}

bool owns_lent_memory(const at::DataPtr& data) {
  return data.get_deleter() == give_back && data.get_context() == data.get();
}

}  // namespace farandole
