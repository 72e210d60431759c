// SPDX-License-Identifier: Apache-2.0
#include "process_group/reconfigure_handle.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <random>
#include <tuple>

#include "farandole/error.h"

namespace farandole {
namespace {

constexpr const char* kPrefix = "farandole:";

}  // namespace

std::string ReconfigureHandle::text() const {
  return kPrefix + std::to_string(rank) + ":" + generation + ":" + instance;
}

ReconfigureHandle ReconfigureHandle::parse(const std::string& text) {
  const size_t first = std::string(kPrefix).size();
  const size_t second = text.find(':', first);
  const size_t third = second == std::string::npos ? second : text.find(':', second + 1);
  ReconfigureHandle handle{-1, "", ""};
  if (text.compare(0, first, kPrefix) == 0 && third != std::string::npos) {
    const char* end = text.data() + second;
    const auto [rest, error] = std::from_chars(text.data() + first, end, handle.rank);
    handle.generation = text.substr(second + 1, third - second - 1);
    handle.instance = text.substr(third + 1);
    if (error == std::errc() && rest == end && handle.text() == text) return handle;
  }
  throw InvalidArgument("unknown-handle", "reconfigure() got the handle '" + text + "'.",
                        "it does not come from a rank of backend farandole.",
                        "pass what get_reconfigure_handle() returned on each rank, unchanged.");
}

std::string ReconfigureHandle::new_instance() {
  std::random_device random;
  return std::to_string((uint64_t{random()} << 32) | random());
}

std::vector<std::string> in_rank_order(std::vector<std::string> handles) {
  const auto place = [](const std::string& text) {
    const ReconfigureHandle handle = ReconfigureHandle::parse(text);
    return std::make_tuple(handle.generation == ReconfigureHandle::kUnformed, handle.rank, text);
  };
  std::sort(handles.begin(), handles.end(),
            [&](const auto& a, const auto& b) { return place(a) < place(b); });
  return handles;
}

void check_handles(const std::vector<std::string>& handles) {
  for (const std::string& text : handles) ReconfigureHandle::parse(text);
  std::vector<std::string> sorted = handles;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  if (!sorted.empty() && !twice) return;
  throw InvalidArgument("handle-list", "reconfigure() got handles that cannot form a group.",
                        twice ? "one of them appears twice." : "the list is empty.",
                        "pass the handle of each rank of the new group once.");
}

}  // namespace farandole
