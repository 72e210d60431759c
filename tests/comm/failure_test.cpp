// SPDX-License-Identifier: Apache-2.0
// What happens when ranks die, leave, come late or disagree. Deadlines of detection are the only
// times that are asserted, with slack.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "support/conformance.h"
#include "support/directory_store.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::CollectiveOptions;
using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DataType kFloat = DataType::kFloat32;

void sum(Communicator& group, size_t count, milliseconds timeout = milliseconds(0)) {
  std::vector<float> data(count, 1.0F);
  CollectiveOptions options;
  options.timeout = timeout;
  group.all_reduce(data.data(), data.data(), count, kFloat, ReduceOp::kSum, options);
}

TEST(Failure, NamesAKilledRankOnAllSurvivorsWithinASecond) {
  for (const size_t count : {size_t{1}, size_t{100000}}) {
    run_process_ranks(4,
                      [&](Communicator& group) {
                        sum(group, count);
                        if (group.rank() == 2) ::raise(SIGKILL);
                        const auto begin = steady_clock::now();
                        const std::string text = raised<CommError>([&] { sum(group, count); });
                        EXPECT_LT(steady_clock::now() - begin, detection_limit());
                        EXPECT_THAT(text, HasSubstr("rank 2 (pid "));
                        EXPECT_THAT(text, AllOf(HasSubstr("why: "), HasSubstr("fix: ")));
                      },
                      {Config(), {2}});
  }
}

TEST(Failure, NamesARankKilledWhileOthersSleepInTheCollective) {
  run_process_ranks(3,
                    [](Communicator& group) {
                      sum(group, 10);
                      if (group.rank() == 0) {
                        std::this_thread::sleep_for(milliseconds(300));
                        ::raise(SIGKILL);
                      }
                      const auto begin = steady_clock::now();
                      const std::string text = raised<CommError>([&] { sum(group, 10); });
                      EXPECT_LT(steady_clock::now() - begin, milliseconds(300) + detection_limit());
                      EXPECT_THAT(text, HasSubstr("rank 0 (pid "));
                    },
                    {Config(), {0}});
}

/// Memory that forked processes share.
template <class T>
class Shared {
 public:
  Shared()
      : value_(new (::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0)) T{}) {}
  ~Shared() { ::munmap(value_, sizeof(T)); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  T* operator->() const { return value_; }

 private:
  T* value_;
};

struct Death {
  std::atomic<steady_clock::rep> time{0};
  std::atomic<bool> told{false};  ///< all survivors know
};

/// Dies within the next few operations, and leaves children that hold all its descriptors open.
void die_soon_with_workers(const Shared<Death>& death) {
  for (int worker = 0; worker < 2; ++worker) {
    if (::fork() != 0) continue;
    const auto deadline = steady_clock::now() + rank_deadline();
    while (!death->told && steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    ::_exit(0);
  }
  std::thread([&] {
    std::this_thread::sleep_for(milliseconds(20));
    death->time = steady_clock::now().time_since_epoch().count();
    ::kill(::getpid(), SIGKILL);
  }).detach();
}

class FailureIn : public ::testing::TestWithParam<Operation> {};

TEST_P(FailureIn, ARankKilledInTheMiddleIsNamedAlthoughItsWorkersLive) {
  const Operation& operation = GetParam();
  const Shared<Death> death;
  Config config;
  config.staging_bytes = 8192;  // operations of several chunks
  Case instance{kFloat, ReduceOp::kSum, 4096, 0, false, Case::Memory::kOrdinary, 0};
  instance.in_place = operation.in_place == Operation::InPlace::kAlways;
  run_process_ranks(3,
                    [&](Communicator& group) {
                      CaseMemory memory(group, config.staging_bytes);
                      if (group.rank() == 2) die_soon_with_workers(death);
                      const std::string text = raised<CommError>([&] {
                        while (memory.run(group, operation, instance).empty()) {
                        }
                        throw std::logic_error("a result is wrong");
                      });
                      const steady_clock::duration since(
                          steady_clock::now().time_since_epoch().count() - death->time);
                      EXPECT_LT(since, detection_limit());
                      EXPECT_THAT(text, HasSubstr("rank 2 (pid "));
                    },
                    {config, {2}});
  death->told = true;
}

INSTANTIATE_TEST_SUITE_P(EveryOperation, FailureIn, ::testing::ValuesIn(operations()),
                         [](const auto& instance) { return instance.param.name; });

/// Becomes another program, which lives for a while under this pid.
void run_another_program() {
  ::alarm(20);
  ::execlp("sleep", "sleep", "20", nullptr);
}

TEST(Failure, NamesARankThatRunsAnotherProgramWithinASecond) {
  for (const int rank : {0, 2}) {
    const Shared<std::atomic<int>> told;
    run_process_ranks(3,
                      [&](Communicator& group) {
                        sum(group, 10);
                        if (group.rank() == rank) {
                          // Its end is no failure, so that it is waited for.
                          if (::fork() == 0) ::_exit(0);
                          run_another_program();
                        }
                        const auto begin = steady_clock::now();
                        const std::string text = raised<CommError>([&] { sum(group, 10); });
                        EXPECT_LT(steady_clock::now() - begin, detection_limit());
                        EXPECT_THAT(text, AllOf(HasSubstr("rank " + std::to_string(rank)),
                                                HasSubstr("runs another program")));
                        // Not before all know: for those it would have died.
                        if (told->fetch_add(1) + 1 < group.world_size() - 1) return;
                        ::kill(group.topology().pids[static_cast<size_t>(rank)], SIGKILL);
                      },
                      {Config(), {rank}});
  }
}

TEST(Failure, NewTimeoutsReachWhatWasMadeBefore) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto memory = group.shared_memory()->allocate_symmetric(256);
    const auto reduction =
        group.shared_memory()->make_bucket_reduction(memory, {{0, 64, kFloat}}, 0);
    group.set_timeout(milliseconds(200));
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(600));
      return;
    }
    reduction->begin(1.0, false);
    reduction->publish(0);
    EXPECT_THAT(raised<CommError>([&] { reduction->finish(nullptr, true, {}); }),
                HasSubstr("timeout of 200 ms"));
  });
}

TEST(Failure, RepeatsTheErrorOnLaterCalls) {
  run_process_ranks(2,
                    [](Communicator& group) {
                      if (group.rank() == 1) ::raise(SIGKILL);
                      const std::string first = raised<PeerFailure>([&] { group.barrier(); });
                      EXPECT_EQ(raised<PeerFailure>([&] { sum(group, 100); }), first);
                    },
                    {Config(), {1}});
}

TEST(Failure, FinishesWithTheDataOfARankThatExitedAfterItsPart) {
  run_process_ranks(2, [](Communicator& group) {
    std::vector<float> data(200000, static_cast<float>(group.rank()));
    group.broadcast(data.data(), data.size(), kFloat, 0);
    EXPECT_EQ(data.back(), 0.0F);
    // Rank 0 is gone by the time rank 1 looks again; nothing is waited for any more.
    if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(200));
  });
}

TEST(Failure, NamesALateRankAndWhereItStandsAtTheTimeout) {
  run_thread_ranks(3, [](Communicator& group) {
    sum(group, 100);
    sum(group, 100);
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(600));
      const std::string text = raised<AbortedError>([&] { sum(group, 100); });
      EXPECT_THAT(text, HasSubstr("gave up"));
      return;
    }
    const std::string text = raised<CommError>([&] { sum(group, 100, milliseconds(200)); });
    EXPECT_THAT(text, HasSubstr("rank 1 (pid "));
    EXPECT_THAT(text, HasSubstr("all_reduce(float32[100], SUM)"));
    EXPECT_THAT(text, HasSubstr("reached its timeout of 200 ms"));
    EXPECT_THAT(text, HasSubstr("rank 1 last reached collective #3"));
    if (text.find("aborted by") == std::string::npos) {
      EXPECT_THAT(text, HasSubstr("#3 all_reduce in group 'test': 400 bytes"));
    }
  });
}

/// Memory of which every page takes a while to read for the first time.
class SlowPages {
 public:
  explicit SlowPages(size_t pages) {
    bytes_ = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    data_ = ::mmap(nullptr, bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct sigaction action {};
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = open_page;
    ::sigaction(SIGSEGV, &action, nullptr);
  }
  ~SlowPages() { ::munmap(data_, bytes_); }
  const void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  static void open_page(int, siginfo_t* info, void*) {
    constexpr timespec kDelay{0, 400'000'000};
    ::nanosleep(&kDelay, nullptr);
    const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
    const auto begin = reinterpret_cast<uintptr_t>(info->si_addr) / page * page;
    ::mprotect(reinterpret_cast<void*>(begin), page, PROT_READ);
  }

  void* data_;
  size_t bytes_;
};

TEST(Failure, BoundsAWholeCollectiveByOneTimeout) {
  Config config;
  config.staging_bytes = 1;  // rounded up to a page, so each page is a chunk with a barrier
  run_process_ranks(
      2,
      [](Communicator& group) {
        const SlowPages slow(16);
        const std::vector<float> quick(slow.bytes() / sizeof(float));
        std::vector<float> output(quick.size());
        const void* input = group.rank() == 1 ? slow.data() : quick.data();
        CollectiveOptions options;
        options.timeout = milliseconds(1000);  // rank 1 is never late by that much at once
        const auto begin = steady_clock::now();
        const std::string text = raised<CommError>([&] {
          group.all_reduce(input, output.data(), quick.size(), kFloat, ReduceOp::kSum, options);
        });
        EXPECT_THAT(text, HasSubstr("reached its timeout of 1000 ms"));
        EXPECT_LT(steady_clock::now() - begin, options.timeout + detection_limit());
      },
      {config});
}

TEST(Failure, TransfersThatFailEndTheGroupOnAllRanksAndOthersDoNot) {
  run_process_ranks(2, [](Communicator& group) {
    std::vector<float> data(100);
    if (group.rank() == 0) {
      group.send(data.data(), 40, 1, 0)->wait(milliseconds(0));
      raised<CommError>([&] { group.receive(data.data(), 8, 1, 7)->wait(milliseconds(100)); });
    } else {
      raised<MismatchError>([&] { group.receive(data.data(), 44, 0, 0)->wait(milliseconds(0)); });
    }
    EXPECT_THAT(raised<AbortedError>([&] { sum(group, 10); }),
                AllOf(HasSubstr("rank 0"), HasSubstr("tag 7, reached its timeout")));
    EXPECT_THAT(raised<AbortedError>([&] { group.shared_memory()->allocate_symmetric(10); }),
                HasSubstr("tag 7"));
    EXPECT_THAT(raised<AbortedError>([&] { group.send(data.data(), 4, 1 - group.rank(), 9); }),
                HasSubstr("tag 7"));
  });
}

TEST(Failure, NamesARankThatLeftTheGroupEarly) {
  run_thread_ranks(2, [](Communicator& group) {
    if (group.rank() == 1) return;  // its communicator is destroyed
    const std::string text = raised<PeerFailure>([&] { sum(group, 10); });
    EXPECT_THAT(text, AllOf(HasSubstr("rank 1"), HasSubstr("left the group"),
                            HasSubstr("rank 1 ended without calling all_reduce(); rank 1"),
                            HasSubstr("fix: call all_reduce() on every rank")));
  });
}

TEST(Failure, NamesBothSidesOfAMismatchOnEveryRankAndGoesOn) {
  run_thread_ranks(3, [](Communicator& group) {
    for (int round = 0; round < 20; ++round) {
      std::vector<float> data(2000, 7.0F);
      const std::string text = raised<MismatchError>([&] {
        if (group.rank() == 2) {
          group.broadcast(data.data(), 10, kFloat, 0);
        } else {
          group.all_reduce(data.data(), data.data(), 2000, kFloat, ReduceOp::kSum);
        }
      });
      EXPECT_THAT(text, AllOf(HasSubstr("rank 0 called all_reduce(float32[2000], SUM)"),
                              HasSubstr("rank 2 called broadcast(float32[10], root=0)")));
      EXPECT_EQ(data.front(), 7.0F);
      std::vector<float> ones(static_cast<size_t>(500 + round * 5000), 1.0F);
      group.all_reduce(ones.data(), ones.data(), ones.size(), kFloat, ReduceOp::kSum);
      ASSERT_EQ(ones.front(), 3.0F);
      ASSERT_EQ(ones.back(), 3.0F);
    }
  });
}

TEST(Failure, TellsDtypeReductionCountAndRootApart) {
  run_thread_ranks(2, [](Communicator& group) {
    const bool first = group.rank() == 0;
    std::vector<double> data(16);
    const auto differ = [&](DataType dtype, ReduceOp op, size_t count) {
      raised<MismatchError>([&] { group.all_reduce(data.data(), data.data(), count, dtype, op); });
    };
    differ(first ? kFloat : DataType::kInt32, ReduceOp::kSum, 4);
    differ(kFloat, first ? ReduceOp::kSum : ReduceOp::kAvg, 4);
    differ(kFloat, ReduceOp::kSum, first ? 4 : 5);
    raised<MismatchError>([&] { group.broadcast(data.data(), 4, kFloat, first ? 0 : 1); });
    group.barrier();
  });
}

TEST(Failure, AbortFromAnotherThreadWakesWaitersEverywhere) {
  run_thread_ranks(3, [](Communicator& group) {
    group.barrier();
    std::thread aborter;
    if (group.rank() == 0) {
      aborter = std::thread([&] {
        std::this_thread::sleep_for(milliseconds(200));
        group.abort("the user pressed stop");
      });
    }
    if (group.rank() == 2) {
      std::this_thread::sleep_for(milliseconds(400));  // never waits, is told at its next call
    }
    const auto begin = steady_clock::now();
    const std::string text = raised<AbortedError>([&] { sum(group, 10); });
    EXPECT_LT(steady_clock::now() - begin, milliseconds(200) + detection_limit());
    EXPECT_THAT(text, AllOf(HasSubstr("rank 0"), HasSubstr("the user pressed stop")));
    if (aborter.joinable()) aborter.join();
  });
}

/// What a rank of three does that needs rank 2, which does not come.
struct Wait {
  const char* name;
  void (*begin)(Communicator&);
};

/// How long after an abort the waiters of one group were told, the slowest of them.
steady_clock::duration told_after(const Wait& wait, milliseconds waited) {
  std::atomic<steady_clock::rep> aborted{0};
  std::atomic<steady_clock::rep> slowest{0};
  run_thread_ranks(3, [&](Communicator& group) {
    group.barrier();
    if (group.rank() == 2) {
      std::this_thread::sleep_for(waited);
      aborted = steady_clock::now().time_since_epoch().count();
      group.abort("the user pressed stop");
      return;
    }
    EXPECT_THAT(raised<AbortedError>([&] { wait.begin(group); }), HasSubstr("pressed stop"));
    const auto told = steady_clock::now().time_since_epoch().count();
    for (auto known = slowest.load(); known < told - aborted;) {
      slowest.compare_exchange_weak(known, told - aborted);
    }
  });
  return steady_clock::duration(slowest);
}

TEST(Failure, AbortWakesWaitersWithin100Ms) {
  const std::vector<Wait> waits{
      {"collective", [](Communicator& group) { sum(group, 10000); }},
      {"receive",
       [](Communicator& group) {
         char byte = 0;
         group.receive(&byte, 1, 2, 0)->wait({});
       }},
      {"send", [](Communicator& group) {
         const std::vector<char> more_than_a_channel_holds(5000000);
         group.send(more_than_a_channel_holds.data(), more_than_a_channel_holds.size(), 2, 0)
             ->wait({});
       }}};
  for (const Wait& wait : waits) {
    std::vector<steady_clock::duration> latencies;
    for (int i = 0; i < 7; ++i) latencies.push_back(told_after(wait, milliseconds(17 * i)));
    std::sort(latencies.begin(), latencies.end());
    EXPECT_LT(latencies[latencies.size() / 2], detection_limit() / 10) << wait.name;
  }
}

TEST(Failure, SurvivorsShrinkAndGoOn) {
  const int world_size = 4;
  run_process_ranks(
      world_size,
      [](Communicator& group) {
        if (group.rank() == 0) ::raise(SIGKILL);
        raised<CommError>([&] { group.barrier(); });
        // Survivors agree on a store of their own; here the parent of the processes names it.
        const std::string folder = "/tmp/farandole-shrink-" + std::to_string(::getppid());
        ::mkdir(folder.c_str(), 0700);
        DirectoryStore store(folder);
        auto smaller = group.shrink({0}, store);
        ASSERT_EQ(smaller->world_size(), 3);
        EXPECT_EQ(smaller->rank(), group.rank() - 1);
        std::vector<float> data(50000, 1.0F);
        smaller->all_reduce(data.data(), data.data(), data.size(), kFloat, ReduceOp::kSum);
        EXPECT_EQ(data.back(), 3.0F);
      },
      {Config(), {0}});
  std::filesystem::remove_all("/tmp/farandole-shrink-" + std::to_string(::getpid()));
}

TEST(Failure, ForkedChildGetsATypedErrorAndHarmsNobody) {
  run_process_ranks(2, [](Communicator& group) {
    sum(group, 100000);
    const pid_t child = ::fork();
    if (child == 0) {
      const std::string text = raised<CommError>([&] { group.barrier(); });
      const std::string staged = raised<CommError>([&] { sum(group, 1000); });
      const bool named = text.find("forked child") != std::string::npos && staged == text;
      group.abort("a child must not be able to");
      ::_exit(named ? 0 : 1);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    sum(group, 100000);
  });
}

TEST(Failure, NamesTheRanksThatNeverCameToTheGroup) {
  comm::InProcessStore store;
  comm::CommunicatorOptions options;
  options.name = "lonely";
  options.world_size = 4;
  options.rank = 1;
  options.config.timeout = milliseconds(100);
  const std::string text =
      raised<TimeoutError>([&] { comm::make_communicator("shm", store, options); });
  EXPECT_THAT(text, AllOf(HasSubstr("'lonely'"), HasSubstr("rank 0, 2, 3")));
}

TEST(Failure, RefusesRanksOfSeveralHosts) {
  comm::InProcessStore store;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      comm::CommunicatorOptions options;
      options.rank = rank;
      options.world_size = 2;
      options.config.host_id = "host-" + std::to_string(rank);
      const std::string text =
          raised<NotSupported>([&] { comm::make_communicator("shm", store, options); });
      EXPECT_THAT(text, HasSubstr("spans 2 hosts"));
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Failure, RejectsCountsWhoseBytesCannotBeCounted) {
  constexpr auto kMostBytes = static_cast<size_t>(INT64_MAX);
  run_thread_ranks(3, [](Communicator& group) {
    for (const Operation& operation : operations()) {
      if (operation.name == std::string("SendAndReceive")) continue;  // takes bytes
      const std::string name = operation.name;
      const bool one_block = name == "AllReduce" || name == "Broadcast" || name == "Reduce";
      for (const DataType dtype : {DataType::kFloat64, DataType::kFloat32, DataType::kUInt8}) {
        const size_t most = kMostBytes / size_of(dtype) / (one_block ? 1 : 3);
        Case instance{dtype, ReduceOp::kSum, most, 0, false, Case::Memory::kOrdinary, 0};
        const auto call = [&] { operation.call(group, nullptr, nullptr, instance, {}); };
        EXPECT_THAT(raised<InvalidArgument>(call), HasSubstr("was called without ")) << name;
        const size_t wraps_around = SIZE_MAX / std::max<size_t>(size_of(dtype), 2) + 2;
        for (const size_t count : {most + 1, wraps_around, SIZE_MAX}) {
          instance.count = count;
          EXPECT_THAT(raised<InvalidArgument>(call), HasSubstr(" is too large.")) << name;
        }
      }
    }
    group.barrier();  // the group is unharmed and in step
  });
}

TEST(Failure, RejectsBadArgumentsBeforeAnythingIsSent) {
  run_thread_ranks(2, [](Communicator& group) {
    std::vector<float> data(64);
    float* base = data.data();
    const auto rejected = [&](const auto& call) { raised<InvalidArgument>(call); };
    rejected([&] { group.broadcast(base, 4, kFloat, 2); });
    rejected([&] { group.broadcast(base, 4, kFloat, -1); });
    rejected([&] { group.all_reduce(nullptr, base, 4, kFloat, ReduceOp::kSum); });
    rejected([&] { group.all_reduce(base, base + 1, 4, kFloat, ReduceOp::kSum); });
    rejected([&] { group.all_reduce(base, base, 4, DataType::kBool, ReduceOp::kAvg); });
    rejected([&] { group.all_reduce(base, base, SIZE_MAX, kFloat, ReduceOp::kSum); });
    rejected([&] { group.all_gather(base + 1, base, 4, kFloat); });
    rejected([&] { group.all_to_all(base, base, 4, kFloat); });
    rejected([&] { group.shared_memory()->allocate_symmetric((size_t{1} << 40) + 1); });
    rejected([&] { group.shared_memory()->allocate_symmetric(SIZE_MAX); });
    group.barrier();  // the group is unharmed and in step
  });
  comm::InProcessStore store;
  comm::CommunicatorOptions options;
  options.rank = 3;
  options.world_size = 2;
  raised<InvalidArgument>([&] { comm::make_communicator("shm", store, options); });
  raised<InvalidArgument>([&] { comm::make_communicator("carrier-pigeon", store, {}); });
}

}  // namespace
}  // namespace farandole::test
