// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/seeded_fault.h"

#include <mutex>
#include <optional>
#include <utility>

namespace farandole::sim {
namespace {

std::mutex mutex;
std::vector<std::string> waits;  // guarded by mutex
std::optional<size_t> left_out;  // guarded by mutex; others before it

}  // namespace

std::vector<std::string> take_stream_waits() {
  const std::lock_guard<std::mutex> lock(mutex);
  return std::exchange(waits, {});
}

void leave_out_wait_after(size_t others) {
  const std::lock_guard<std::mutex> lock(mutex);
  left_out = others;
}

bool leaves_out_wait(size_t waiting, size_t awaited) {
  const std::lock_guard<std::mutex> lock(mutex);
  waits.push_back(std::to_string(waiting) + " for " + std::to_string(awaited));
  if (!left_out) return false;
  if (*left_out > 0) {
    --*left_out;
    return false;
  }
  left_out.reset();
  return true;
}

}  // namespace farandole::sim
