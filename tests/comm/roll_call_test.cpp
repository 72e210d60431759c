// SPDX-License-Identifier: Apache-2.0
// Ranks that meet in a store which others have used before, or which not all of them can use.
#include "comm/roll_call.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::CommunicatorOptions;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

CommunicatorOptions options_of(int rank, int world_size) {
  CommunicatorOptions options;
  options.name = "again";
  options.rank = rank;
  options.world_size = world_size;
  options.config.timeout = rank_deadline() / 2;
  return options;
}

/// Forms the group and adds up a number over it; 0 if it did not form.
int form(comm::Store& store, const CommunicatorOptions& options) {
  int32_t sum = 1;
  try {
    comm::make_communicator("shm", store, options)
        ->all_reduce(&sum, &sum, 1, comm::DataType::kInt32, comm::ReduceOp::kSum);
  } catch (const CommError&) {
    return 0;
  }
  return sum;
}

/// Runs each as a thread.
void together(const std::vector<std::function<void()>>& bodies) {
  std::vector<std::thread> threads;
  for (const auto& body : bodies) threads.emplace_back(body);
  for (std::thread& thread : threads) thread.join();
}

/// Leaves in `store` what ranks say that end while they wait for `absent`.
void leave_dead_ranks(const std::string& folder, int world_size, int absent,
                      const std::string& attempt) {
  std::vector<pid_t> children;
  for (int rank = 0; rank < world_size; ++rank) {
    if (rank == absent) continue;
    children.push_back(::fork());
    if (children.back() != 0) continue;
    DirectoryStore store(folder);
    CommunicatorOptions options = options_of(rank, world_size);
    options.attempt = attempt;
    options.config.timeout = milliseconds(200);
    form(store, options);
    ::_exit(0);
  }
  for (const pid_t child : children) ::waitpid(child, nullptr, 0);
}

class Restart : public ::testing::TestWithParam<int> {};

TEST_P(Restart, MeetsNothingOfTheAttemptBefore) {
  const TemporaryDirectory folder;
  leave_dead_ranks(folder.path(), 3, GetParam(), "0");
  for (const int late : {0, 1, 2}) {
    std::vector<std::function<void()>> ranks;
    for (int rank = 0; rank < 3; ++rank) {
      ranks.emplace_back([&, rank] {
        DirectoryStore store(folder.path());
        CommunicatorOptions options = options_of(rank, 3);
        options.attempt = std::to_string(late + 1);
        if (rank == late) std::this_thread::sleep_for(milliseconds(200));
        EXPECT_EQ(form(store, options), 3);
      });
    }
    together(ranks);
  }
}

INSTANTIATE_TEST_SUITE_P(OfAJobThatLacked, Restart, ::testing::Values(0, 1, 2));

TEST(RollCall, MeetsNothingOfARestartThatNobodyCounts) {
  const TemporaryDirectory folder;
  leave_dead_ranks(folder.path(), 2, 1, "");
  together({[&] {
              DirectoryStore store(folder.path());
              std::this_thread::sleep_for(milliseconds(300));
              EXPECT_EQ(form(store, options_of(0, 2)), 2);
            },
            [&] {
              DirectoryStore store(folder.path());
              EXPECT_EQ(form(store, options_of(1, 2)), 2);
            }});
}

TEST(RollCall, LetsRanksMeetThatRetryAtTheirOwnTimes) {
  comm::InProcessStore store;
  std::atomic<int> tries{0};
  const auto run = [&](int rank, milliseconds timeout) {
    CommunicatorOptions options = options_of(rank, 3);
    options.config.timeout = timeout;
    const auto deadline = steady_clock::now() + rank_deadline() / 2;
    while (steady_clock::now() < deadline) {
      ++tries;
      if (form(store, options) == 3) return;
    }
    ADD_FAILURE() << "rank " << rank << " meets nobody";
  };
  together({[&] { run(0, milliseconds(300)); }, [&] { run(1, milliseconds(4000)); },
            [&] {
              std::this_thread::sleep_for(milliseconds(1000));
              run(2, milliseconds(4000));
            }});
  EXPECT_GT(tries, 3);
}

TEST(RollCall, NamesARankThatDiesBeforeAllHaveCome) {
  const TemporaryDirectory folder;
  std::vector<std::future<std::string>> texts;
  const pid_t victim = ::fork();
  if (victim == 0) {
    DirectoryStore store(folder.path());
    form(store, options_of(1, 4));
    ::_exit(0);
  }
  for (const int rank : {0, 2}) {  // rank 3 does not come
    texts.push_back(std::async(std::launch::async, [&folder, rank] {
      DirectoryStore store(folder.path());
      return raised<CommError>([&] { comm::make_communicator("shm", store, options_of(rank, 4)); });
    }));
  }
  std::this_thread::sleep_for(milliseconds(500));
  const auto begin = steady_clock::now();
  ::kill(victim, SIGKILL);
  ::waitpid(victim, nullptr, 0);
  for (auto& text : texts) EXPECT_THAT(text.get(), HasSubstr("rank 1 (pid "));
  EXPECT_LT(steady_clock::now() - begin, 2 * detection_limit());
}

TEST(RollCall, TellsWhyARankGaveUpBeforeItEnded) {
  const TemporaryDirectory folder;
  const pid_t follower = ::fork();
  if (follower == 0) {
    DirectoryStore store(folder.path());
    CommunicatorOptions options = options_of(1, 3);  // rank 2 does not come
    const auto until = steady_clock::now() + milliseconds(300);
    options.while_forming = [&](const comm::IsAbsent& /*is_absent*/) {
      if (steady_clock::now() > until) throw SystemError("store-failed", "Broken.", "a cause.", "");
    };
    form(store, options);
    ::_exit(0);
  }
  const auto begin = steady_clock::now();
  DirectoryStore store(folder.path());
  EXPECT_THAT(
      raised<AbortedError>([&] { comm::make_communicator("shm", store, options_of(0, 3)); }),
      AllOf(HasSubstr("rank 1 (pid "), HasSubstr("gave up"), HasSubstr("a cause.")));
  EXPECT_LT(steady_clock::now() - begin, 2 * detection_limit());
  ::waitpid(follower, nullptr, 0);
}

/// What two ranks, threads, get to read whose options differ.
std::vector<std::string> texts_of(const CommunicatorOptions& first,
                                  const CommunicatorOptions& second) {
  comm::InProcessStore store;
  std::vector<std::string> texts(2);
  const auto run = [&](const CommunicatorOptions& options) {
    texts[static_cast<size_t>(options.rank)] =
        raised<MismatchError>([&] { comm::make_communicator("shm", store, options); });
  };
  const auto begin = steady_clock::now();
  together({[&] { run(first); }, [&] { run(second); }});
  EXPECT_LT(steady_clock::now() - begin, 2 * detection_limit());
  return texts;
}

TEST(RollCall, TellsBuildsApartBeforeMemoryIsShared) {
  CommunicatorOptions older = options_of(0, 2);
  CommunicatorOptions newer = options_of(1, 2);
  older.build = "torch 2.11.0";
  newer.build = "torch 2.15.0";
  const std::vector<std::string> texts = texts_of(older, newer);
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_THAT(texts[0], AllOf(HasSubstr("rank 0 (pid "), HasSubstr("torch 2.11.0, layout "),
                              HasSubstr("rank 1 (pid "), HasSubstr("torch 2.15.0, layout ")));
}

TEST(RollCall, TellsWorldSizesApart) {
  for (const int more : {0, 1}) {
    const std::vector<std::string> texts =
        texts_of(options_of(0, more == 0 ? 3 : 2), options_of(1, more == 0 ? 2 : 3));
    EXPECT_EQ(texts[0], texts[1]);
    EXPECT_THAT(texts[0], AllOf(HasSubstr("world size 2"), HasSubstr("world size 3")));
  }
}

TEST(RollCall, TellsARankThatTheOthersDoNotCountAtItsTimeout) {
  comm::InProcessStore store;
  together({[&] {
              CommunicatorOptions options = options_of(0, 2);
              options.config.timeout = milliseconds(600);
              raised<TimeoutError>([&] { comm::make_communicator("shm", store, options); });
            },
            [&] {
              CommunicatorOptions options = options_of(2, 3);
              options.config.timeout = milliseconds(300);
              EXPECT_THAT(
                  raised<MismatchError>([&] { comm::make_communicator("shm", store, options); }),
                  HasSubstr("world size 3"));
            }});
}

TEST(RollCall, NamesWhoDidNotComeOnEveryRank) {
  comm::InProcessStore store;
  std::vector<std::function<void()>> ranks;
  for (const int rank : {0, 2}) {
    ranks.emplace_back([&store, rank] {
      CommunicatorOptions options = options_of(rank, 4);
      options.config.timeout = milliseconds(300);
      EXPECT_THAT(raised<TimeoutError>([&] { comm::make_communicator("shm", store, options); }),
                  AllOf(HasSubstr("within its timeout of 300 ms: rank 1, 3 did not arrive"),
                        HasSubstr("seen by rank " + std::to_string(rank) + " of 4")));
    });
  }
  together(ranks);
}

/// A store that rank 0 serves: it is gone with that process.
class ServedStore : public DirectoryStore {
 public:
  ServedStore(std::string folder, pid_t server)
      : DirectoryStore(std::move(folder)), server_(server) {}
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    check();
    return DirectoryStore::get(key, timeout);
  }
  void set(const std::string& key, const std::string& value) override {
    check();
    DirectoryStore::set(key, value);
  }

 private:
  void check() const {
    if (::kill(server_, 0) == 0) return;
    throw SystemError("store-failed", "the store could not get.", "connection reset.",
                      "see that it lives.");
  }
  pid_t server_;
};

TEST(RollCall, CallsALostStoreTheDeathOfRankZero) {
  const TemporaryDirectory folder;
  const pid_t server = ::fork();
  if (server == 0) {
    DirectoryStore store(folder.path());
    form(store, options_of(0, 3));  // rank 2 does not come
    ::_exit(0);
  }
  auto text = std::async(std::launch::async, [&] {
    ServedStore store(folder.path(), server);
    return raised<PeerFailure>([&] { comm::make_communicator("shm", store, options_of(1, 3)); });
  });
  std::this_thread::sleep_for(milliseconds(500));
  ::kill(server, SIGKILL);
  ::waitpid(server, nullptr, 0);
  EXPECT_THAT(text.get(), HasSubstr("rank 0 (pid "));
}

}  // namespace
}  // namespace farandole::test
