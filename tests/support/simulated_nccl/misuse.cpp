// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/misuse.h"

#include <mutex>
#include <utility>

namespace farandole::sim::nccl {
namespace {

struct Reports {
  std::mutex mutex;
  std::string text;  ///< guarded by mutex
};

Reports& reports() {
  static auto* made = new Reports;  // kernels may use it while the process ends
  return *made;
}

}  // namespace

void report(const std::string& text) {
  const std::lock_guard<std::mutex> lock(reports().mutex);
  if (reports().text.find(text + "\n") == std::string::npos) reports().text += text + "\n";
}

std::string take_reports() {
  const std::lock_guard<std::mutex> lock(reports().mutex);
  return std::exchange(reports().text, {});
}

}  // namespace farandole::sim::nccl
