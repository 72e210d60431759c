// SPDX-License-Identifier: Apache-2.0
// Ranks that fail or die while a group forms: the others must learn of it long before the timeout,
// which is half an hour here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/store.h"
#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::CommunicatorOptions;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Called with a key and whether it is set, just before it is; other keys are waited for.
using Hook = std::function<void(const std::string& key, bool is_set)>;

/// A store that lets a rank misbehave at a chosen moment.
class HookedStore : public comm::Store {
 public:
  HookedStore(comm::Store& store, Hook hook) : store_(store), hook_(std::move(hook)) {}
  void set(const std::string& key, const std::string& value) override {
    hook_(key, true);
    store_.set(key, value);
  }
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    hook_(key, false);
    return store_.get(key, timeout);
  }

 private:
  comm::Store& store_;
  Hook hook_;
};

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

constexpr int kWorldSize = 4;

/// Learning takes some tenths of a second; sanitizers and busy machines get slack.
milliseconds formation_limit() { return 3 * detection_limit(); }

CommunicatorOptions options_of(int rank) {
  CommunicatorOptions options;
  options.name = "forming";
  options.rank = rank;
  options.world_size = kWorldSize;
  return options;
}

/// Forms a group of which `faulty` runs `hook` at each use of the store. Returns what this rank got
/// to read, or "" if the group formed.
std::string form(comm::Store& store, const CommunicatorOptions& options, int faulty,
                 const Hook& hook) {
  HookedStore hooked(
      store, options.rank == faulty ? hook : [](const std::string&, bool) {});
  try {
    comm::make_communicator("shm", hooked, options)->barrier();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

/// What each rank, a process, got to read; "" also for those that died.
std::vector<std::string> form_in_processes(int faulty, const Hook& hook,
                                           const CommunicatorOptions& base = options_of(0)) {
  const TemporaryDirectory directory;
  std::vector<pid_t> children;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    DirectoryStore store(directory.path());
    CommunicatorOptions options = base;
    options.rank = rank;
    const std::string text = form(store, options, faulty, hook);
    rlimit files{};
    ::getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    ::setrlimit(RLIMIT_NOFILE, &files);  // what is kept of a group may be all that there were
    std::ofstream(directory.path() + "/text." + std::to_string(rank)) << text;
    ::_exit(0);
  }
  const auto deadline = steady_clock::now() + formation_limit() + milliseconds(2000);
  std::vector<std::string> texts;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const pid_t child = children[static_cast<size_t>(rank)];
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      std::this_thread::sleep_for(milliseconds(5));
      if (steady_clock::now() < deadline) continue;
      ADD_FAILURE() << "rank " << rank << " still waits";
      ::kill(child, SIGKILL);
    }
    std::ifstream file(directory.path() + "/text." + std::to_string(rank));
    texts.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return texts;
}

void expect_all_name(const std::vector<std::string>& texts, int faulty,
                     const std::string& reason = "") {
  for (int rank = 0; rank < kWorldSize; ++rank) {
    if (rank == faulty) continue;
    EXPECT_THAT(texts[static_cast<size_t>(rank)],
                AllOf(HasSubstr("rank " + std::to_string(faulty) + " (pid "), HasSubstr(reason),
                      HasSubstr("\nwhy: "), HasSubstr("\nfix: ")))
        << "on rank " << rank;
  }
}

/// Dies at the first use of a key that ends so.
Hook dies_at(const std::string& end, bool is_set) {
  return [=](const std::string& key, bool sets) {
    if (ends_with(key, end) && sets == is_set) ::raise(SIGKILL);
  };
}

TEST(Bootstrap, NamesRankZeroThatDiesBeforeItTellsTheLayout) {
  expect_all_name(form_in_processes(0, dies_at("/layout", true)), 0);
}

TEST(Bootstrap, NamesRankZeroThatDiesBeforeItOpensItsSocket) {
  expect_all_name(form_in_processes(0, dies_at("/exchange", true)), 0);
}

TEST(Bootstrap, NamesARankThatDiesBeforeItConnects) {
  expect_all_name(form_in_processes(2, dies_at("/exchange", false)), 2);
}

TEST(Bootstrap, NamesARankThatCannotMapTheSegmentWithItsOwnError) {
  CommunicatorOptions options = options_of(0);
  options.config.staging_bytes = size_t{1} << 28;  // slots of 2 GiB in all; no page is touched
  const auto starve = [](const std::string& key, bool) {
    if (!ends_with(key, "/exchange")) return;
    size_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const rlim_t limit = pages * static_cast<size_t>(::sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 29);
    const rlimit space{limit, limit};
    ::setrlimit(RLIMIT_AS, &space);
  };
  const std::vector<std::string> texts = form_in_processes(2, starve, options);
  EXPECT_THAT(texts[2], AllOf(HasSubstr("mapping "), HasSubstr("(errno 12)")));
  expect_all_name(texts, 2, "(errno 12)");
}

TEST(Bootstrap, NamesRankZeroThatCannotMakeTheSegment) {
  const auto forbid = [](const std::string& key, bool) {
    if (!ends_with(key, "/exchange")) return;
    const rlimit size{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &size);
  };
  const std::vector<std::string> texts = form_in_processes(0, forbid);
  expect_all_name(texts, 0, "(errno 27)");
  EXPECT_THAT(texts[0], AllOf(HasSubstr("(errno 27)"), HasSubstr("(ulimit -f)")));
}

#ifndef FARANDOLE_SANITIZED  // UBSan opens a pipe for each look at an object's type
TEST(Bootstrap, CallsALackOfDescriptorsByItsName) {
  const auto exhaust = [](const std::string& key, bool) {
    if (!ends_with(key, "/exchange")) return;
    static bool is_done = false;
    if (std::exchange(is_done, true)) return;
    std::array<int, 3> next{};  // not consecutive where the test was started with others open
    for (int& descriptor : next) descriptor = ::dup(0);
    for (const int descriptor : next) ::close(descriptor);
    const rlimit files{static_cast<rlim_t>(next.back()), 4096};  // sockets, but no segment
    ::setrlimit(RLIMIT_NOFILE, &files);
  };
  const std::vector<std::string> texts = form_in_processes(0, exhaust);
  EXPECT_THAT(texts[0], AllOf(HasSubstr("(errno 24)"), HasSubstr("(ulimit -n)")));
}
#endif

TEST(Bootstrap, SurvivesAStormOfSignals) {
  const auto storm = [] {
    struct sigaction action {};
    action.sa_handler = [](int) {};
    ::sigaction(SIGALRM, &action, nullptr);  // without SA_RESTART
    const itimerval often{{0, 200}, {0, 200}};
    ::setitimer(ITIMER_REAL, &often, nullptr);
  };
  CommunicatorOptions options = options_of(0);
  options.config.segments = SegmentBacking::kTmpfile;
  for (int round = 0; round < 3; ++round) {
    const Hook hook = [&](const std::string& key, bool) {
      if (ends_with(key, "/layout")) storm();
    };
    const std::vector<std::string> texts = form_in_processes(round, hook, options);
    for (const std::string& text : texts) EXPECT_EQ(text, "");
  }
}

TEST(Bootstrap, TellsRankThreadsOfOneThatFailed) {
  for (const int faulty : {0, 2}) {
    comm::InProcessStore store;
    std::vector<std::string> texts(kWorldSize);
    std::vector<std::thread> ranks;
    const auto begin = steady_clock::now();
    for (int rank = 0; rank < kWorldSize; ++rank) {
      ranks.emplace_back([&, rank] {
        texts[static_cast<size_t>(rank)] =
            form(store, options_of(rank), faulty, [](const std::string& key, bool) {
              if (ends_with(key, "/exchange")) throw std::runtime_error("the store caught fire");
            });
      });
    }
    for (std::thread& rank : ranks) rank.join();
    EXPECT_LT(steady_clock::now() - begin, formation_limit());
    expect_all_name(texts, faulty, "the store caught fire");
  }
}

TEST(Bootstrap, WaitsForRankThreadsThatAreOnlyLate) {
  comm::InProcessStore store;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    ranks.emplace_back([&, rank] {
      EXPECT_EQ(form(store, options_of(rank), rank,
                     [&](const std::string&, bool) {
                       std::this_thread::sleep_for(milliseconds(60 * rank));
                     }),
                "");
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST(Bootstrap, JoinsAndWatchesRanksOfSeveralPidNamespaces) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root may make a pid namespace";
  const TemporaryDirectory directory;
  const auto run_rank = [&](int rank) {
    DirectoryStore store(directory.path());
    auto group = comm::make_communicator("shm", store, options_of(rank));
    group->barrier();
    if (rank == 3) ::_exit(9);  // the first process of a namespace is safe from its own signals
    try {
      group->barrier();
    } catch (const PeerFailure& error) {
      return std::string(error.what()).find("rank 3") != std::string::npos;
    } catch (const AbortedError& error) {
      return std::string(error.what()).find("rank 3") != std::string::npos;
    }
    return false;
  };
  std::vector<pid_t> children;
  for (int rank = 0; rank < kWorldSize; ++rank) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    if (rank >= 2 && ::unshare(CLONE_NEWPID) != 0) ::_exit(77);
    // The namespace holds for children alone; each of ours is number 1 in its own.
    const pid_t inner = rank >= 2 ? ::fork() : 0;
    if (inner == 0) {
      bool passed = false;
      try {
        passed = run_rank(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      }
      ::_exit(passed ? 0 : 1);
    }
    int status = 0;
    ::waitpid(inner, &status, 0);
    ::_exit(WIFSIGNALED(status) ? 9 : WEXITSTATUS(status));
  }
  const auto deadline = steady_clock::now() + rank_deadline();
  for (int rank = 0; rank < kWorldSize; ++rank) {
    const pid_t child = children[static_cast<size_t>(rank)];
    int status = 0;
    while (::waitpid(child, &status, WNOHANG) == 0) {
      std::this_thread::sleep_for(milliseconds(5));
      if (steady_clock::now() > deadline) ::kill(child, SIGKILL);
    }
    EXPECT_EQ(WEXITSTATUS(status), rank == 3 ? 9 : 0) << "rank " << rank;
    EXPECT_FALSE(WIFSIGNALED(status)) << "rank " << rank << " hangs";
  }
}

}  // namespace
}  // namespace farandole::test
