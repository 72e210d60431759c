// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <future>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "farandole/process_group/init.h"
#include "farandole/process_group/process_group.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {

using GroupPointer = c10::intrusive_ptr<ProcessGroupFarandole>;

/// Runs `body` on ranks that are threads, each with its part of one new group. Rethrows the first
/// error of the lowest rank; ends the test program if the ranks are not done within the deadline.
inline void run_group_pointers(int world_size, const std::function<void(const GroupPointer&)>& body,
                               std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      body(c10::make_intrusive<ProcessGroupFarandole>(
          store, rank, world_size, c10::make_intrusive<ProcessGroupFarandole::Options>(timeout)));
    }));
  }
  const auto deadline = std::chrono::steady_clock::now() + rank_deadline();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].wait_until(deadline) == std::future_status::ready) continue;
    fprintf(stderr, "rank %zu of %d was not done at the deadline\n", rank, world_size);
    std::_Exit(1);
  }
  for (auto& rank : ranks) rank.get();
}

/// A c10d group around `backend`, unknown to the registry of groups.
inline Group group_around(const c10::intrusive_ptr<c10d::Backend>& backend) {
  auto group = c10::make_intrusive<c10d::ProcessGroup>(backend->getRank(), backend->getSize());
  group->setDefaultBackend(c10d::ProcessGroup::BackendType::CUSTOM);
  group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::CUSTOM, backend);
  group->setGroupDesc("default");
  return group;
}

using GroupBody = std::function<void(ProcessGroupFarandole&)>;

/// As run_group_pointers().
inline void run_group_ranks(int world_size, const GroupBody& body,
                            std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  run_group_pointers(
      world_size, [&](const GroupPointer& group) { body(*group); }, timeout);
}

/// As raised(), and fails the test if the text does not say why and what to do.
template <class Expected, class Function>
std::string error_of(const Function& function) {
  const std::string text = raised<Expected>(function);
  EXPECT_NE(text.find("\nwhy: "), std::string::npos) << text;
  EXPECT_NE(text.find("\nfix: "), std::string::npos) << text;
  return text;
}

}  // namespace farandole::test
