// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/descriptor_exchange.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <future>
#include <string>

#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/forked_child.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using std::chrono::milliseconds;

std::unique_ptr<comm::Communicator> join(comm::Store& store, int rank, milliseconds timeout) {
  comm::CommunicatorOptions options;
  options.name = "test";
  options.rank = rank;
  options.world_size = 2;
  options.config.timeout = timeout;
  return comm::make_communicator("shm", store, options);
}

/// Reads what the ranks publish and publishes nothing.
class Eavesdropper : public DirectoryStore {
 public:
  using DirectoryStore::DirectoryStore;
  void set(const std::string&, const std::string&) override {}
};

/// Publishes, but reads nothing before `gate` has returned.
class GatedStore : public DirectoryStore {
 public:
  GatedStore(std::string directory, std::function<void()> gate)
      : DirectoryStore(std::move(directory)), gate_(std::move(gate)) {}
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    if (const auto gate = std::exchange(gate_, nullptr)) gate();
    return DirectoryStore::get(key, timeout);
  }

 private:
  std::function<void()> gate_;
};

TEST(DescriptorExchange, RefusesAnotherUserWhoKnowsTheTokenAndTheGroupStillForms) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const TemporaryDirectory folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  // Takes the place of rank 1 with the library's own code, as a user that the socket's owner is
  // not; its own look at the owner is at the real user id, which stays.
  ForkedChild stranger([&] {
    constexpr uid_t kNobody = 65534;
    if (::setresuid(static_cast<uid_t>(-1), kNobody, kNobody) != 0) return false;
    Eavesdropper store(folder.path());
    return !raised<CommError>([&] { join(store, 1, milliseconds(5000)); }).empty();
  });
  const auto run_rank = [](comm::Store& store, int rank) {
    const auto group = join(store, rank, rank_deadline() / 2);
    int sum = rank + 1;
    group->all_reduce(&sum, &sum, 1, comm::DataType::kInt32, comm::ReduceOp::kSum);
    return sum;
  };
  auto first = std::async(std::launch::async, [&] {
    DirectoryStore store(folder.path());
    return run_rank(store, 0);
  });
  GatedStore gated(folder.path(), [&] { EXPECT_TRUE(stranger.succeeded()); });
  EXPECT_EQ(run_rank(gated, 1), 3);
  EXPECT_EQ(first.get(), 3);
}

}  // namespace
}  // namespace farandole::test
