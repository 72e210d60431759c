// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/init.h"

#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/GroupRegistry.hpp>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <vector>

#include "comm/open_files.h"
#include "farandole/error.h"
#include "farandole/process_group/collectives.h"
#include "farandole/process_group/process_group.h"
#include "farandole/process_group/symmetric_tensor.h"
#include "process_group/group_ranks.h"
#include "process_group/slurm.h"
#include "support/ranks.h"

namespace farandole {
namespace {

using test::error_of;

InitOptions options_through_file(const comm::Communicator& communicator, const std::string& path) {
  InitOptions options;
  options.rank = communicator.rank();
  options.world_size = communicator.world_size();
  options.init_method = "file://" + path;
  return options;
}

class Init : public testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
                             "MASTER_PORT", "TORCHELASTIC_USE_AGENT_STORE", "OMPI_COMM_WORLD_SIZE",
                             "PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_STEP_ID"}) {
      ::unsetenv(name);
    }
  }
  void TearDown() override { destroy(); }
};

InitOptions over(const c10::intrusive_ptr<c10d::Store>& store, int rank, int world_size) {
  InitOptions options;
  options.store = store;
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

TEST_F(Init, RunsAloneWithoutALauncherAndSaysSo) {
  testing::internal::CaptureStderr();
  const Group world = init_process_group();
  EXPECT_NE(testing::internal::GetCapturedStderr().find("farandole INFO: "), std::string::npos);
  EXPECT_EQ(rank(), 0);
  EXPECT_EQ(world_size(), 1);
  EXPECT_EQ(local_rank(), 0);
  EXPECT_EQ(local_world_size(), 1);
  EXPECT_EQ(world.get(), default_group().get());
  EXPECT_EQ(world.get(), init_process_group().get());
  EXPECT_EQ(world.get(), c10d::resolve_process_group("0").get());
  EXPECT_NE(ProcessGroupFarandole::of(*world), nullptr);
}

TEST_F(Init, RefusesToRunAloneAsOneOfSeveral) {  // on several hosts, without an address
  ::setenv("OMPI_COMM_WORLD_SIZE", "4", 1);
  ::setenv("OMPI_COMM_WORLD_RANK", "2", 1);
  const std::string text = error_of<InvalidArgument>([] { init_process_group(); });
  EXPECT_NE(text.find("the 4 ranks of mpirun"), std::string::npos) << text;
  EXPECT_NE(text.find("MASTER_ADDR"), std::string::npos) << text;
  InitOptions alone;
  alone.rank = 0;
  alone.world_size = 1;
  EXPECT_EQ(init_process_group(alone)->getSize(), 1);
  destroy();
  EXPECT_EQ(init_process_group(over(c10::make_intrusive<c10d::HashStore>(), 0, 1))->getSize(), 1);
}

TEST(Slurm, ExpandsItsLists) {
  EXPECT_EQ(first_host_of("node[003-005,9],login1"), "node003");
  EXPECT_EQ(first_host_of("a1,b2"), "a1");
  EXPECT_EQ(first_host_of("rack[2-3]node[07,9]"), "rack2node07");
  EXPECT_EQ(first_host_of("node[12"), "node12");
  EXPECT_EQ(first_host_of(""), "");
  EXPECT_EQ(tasks_on_node("2(x3),1", 0), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 2), 2);
  EXPECT_EQ(tasks_on_node("2(x3),1", 3), 1);
  EXPECT_EQ(tasks_on_node("2(x3),1", 4), 0);
  EXPECT_EQ(tasks_on_node("many", 0), 0);
}

TEST_F(Init, MayBeRepeatedAfterDestroy) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(is_initialized());
    init_process_group(over(store, 0, 1));
    barrier();
    EXPECT_TRUE(is_initialized());
    destroy();
  }
  EXPECT_NE(error_of<InvalidArgument>([] { default_group(); }).find("no default group"),
            std::string::npos);
}

/// Groups over a limit of open files: first rank 0 hears how many more fit, then a typed error ends
/// it.
TEST_F(Init, SaysInTimeThatDescriptorsRunOut) {
#if defined(FARANDOLE_SANITIZED_ADDRESS)
  GTEST_SKIP()
      << "AddressSanitizer's build checks virtual calls with pipes, which need descriptors";
#endif
  const std::string path =
      testing::TempDir() + "/farandole_init_test_files_" + std::to_string(::getpid());
  const auto run = [&](comm::Communicator& communicator) {
    const rlim_t most = comm::open_files()->open + 120;
    const rlimit limit{most, most};
    ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
    const InitOptions options = options_through_file(communicator, path);
    init_process_group(options);
    testing::internal::CaptureStderr();
    std::string text;
    for (int group = 0; group < 200 && text.empty(); ++group) {
      try {
        new_group({0, 1});
      } catch (const Error& error) {
        text = error.what();
      }
    }
    const std::string told = testing::internal::GetCapturedStderr();
    EXPECT_NE(text, "") << "no limit was met";
    const size_t first =
        told.find("more groups like it fit. Raise the limit of open files (ulimit");
    EXPECT_EQ(first != std::string::npos, communicator.rank() == 0);
    if (first != std::string::npos) {
      EXPECT_EQ(told.find("more groups like it fit", first + 1), std::string::npos);
    }
    destroy();
  };
  test::run_process_ranks(2, run);
  std::remove(path.c_str());
}

using PendingWork = c10::intrusive_ptr<c10d::Work>;

/// Runs `body` on rank 0 of two processes with a collective that is not done before `complete()`.
void run_beside_pending_work(
    const std::function<void(PendingWork work, const std::function<void()>& complete)>& body) {
  const std::string path =
      testing::TempDir() + "/farandole_init_test_pending_" + std::to_string(::getpid());
  const auto run = [&](comm::Communicator& communicator) {
    const InitOptions options = options_through_file(communicator, path);
    const Group world = init_process_group(options);
    if (communicator.rank() == 1) communicator.barrier();
    std::vector<at::Tensor> tensors{at::ones({1})};
    const PendingWork work = world->allreduce(tensors, {});
    if (communicator.rank() == 0) {
      body(work, [&] {
        communicator.barrier();
        work->wait();
      });
    } else {
      work->wait();
    }
    destroy();
  };
  test::run_process_ranks(2, run);
  std::remove(path.c_str());
}

TEST_F(Init, ACallbackMayAskForItsRankWhileGroupsEnd) {
  run_beside_pending_work([](const PendingWork& work, const std::function<void()>& complete) {
    const Group single = new_group({0});
    const auto found = std::make_shared<std::atomic<int>>(-1);
    work->getFuture()->addCallback([found, single](c10::ivalue::Future&) {
      // Until destroy() has ended that group, and waits for this callback to end the other one.
      const auto is_ended = [&single] {
        try {
          single->barrier()->wait();
          return false;
        } catch (const AbortedError&) {
          return true;
        }
      };
      while (!is_ended()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      *found = rank();
    });
    complete();
    destroy();
    EXPECT_EQ(*found, 0);
    EXPECT_FALSE(is_initialized());
  });
}

TEST_F(Init, RefusesASecondDefaultGroup) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  init_process_group(over(store, 0, 1));
  error_of<InvalidArgument>([&] { init_process_group(over(store, 0, 1)); });
}

TEST_F(Init, RefusesIncompleteArguments) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  error_of<InvalidArgument>([&] { init_process_group(over(store, -1, 2)); });
  error_of<InvalidArgument>([&] { init_process_group(over(store, 2, 2)); });
  InitOptions both = over(store, 0, 1);
  both.init_method = "env://";
  error_of<InvalidArgument>([&] { init_process_group(both); });
  InitOptions method;
  method.rank = 0;
  method.world_size = 1;
  for (const char* text : {"http://x:1", "tcp://nowhere", "tcp://x:port", "tcp://x:99999"}) {
    method.init_method = text;
    EXPECT_NE(error_of<InvalidArgument>([&] { init_process_group(method); }).find(text),
              std::string::npos);
  }
}

TEST_F(Init, NamesTheVariableThatIsMissing) {
  ::setenv("RANK", "0", 1);
  EXPECT_NE(error_of<InvalidArgument>([] { init_process_group(); }).find("WORLD_SIZE is not set"),
            std::string::npos);
  ::setenv("WORLD_SIZE", "1", 1);
  EXPECT_NE(error_of<InvalidArgument>([] { init_process_group(); }).find("MASTER_ADDR is not set"),
            std::string::npos);
}

/// Checks the default group of this rank and all that the API does on it.
void use_api(int own, int size) {
  EXPECT_EQ(rank(), own);
  EXPECT_EQ(world_size(), size);
  EXPECT_EQ(local_rank(), own);
  EXPECT_EQ(local_world_size(), size);
  const at::Tensor everyone = at::arange(size, at::kFloat);

  at::Tensor tensor = at::full({3}, own + 1.0);
  EXPECT_TRUE(all_reduce(tensor, {c10d::ReduceOp::MAX})->isCompleted());
  EXPECT_TRUE(at::equal(tensor, at::full({3}, static_cast<double>(size))));
  tensor = at::full({1}, static_cast<double>(own));
  all_reduce(tensor, {c10d::ReduceOp::SUM, {}, true})->wait();
  EXPECT_EQ(tensor.item<float>(), everyone.sum().item<float>());

  const at::Tensor mine = at::full({1}, static_cast<double>(own));
  const at::Tensor flat = at::empty({size});
  all_gather(flat, mine);
  EXPECT_TRUE(at::equal(flat, everyone));
  const at::Tensor part = at::empty({1});
  reduce_scatter(part, flat);
  EXPECT_EQ(part.item<float>(), static_cast<float>(own * size));
  tensor = mine.clone();
  broadcast(tensor, size - 1);
  EXPECT_EQ(tensor.item<float>(), static_cast<float>(size - 1));
  tensor = mine.clone();
  reduce(tensor, 0);
  EXPECT_EQ(tensor.item<float>(),
            own == 0 ? everyone.sum().item<float>() : static_cast<float>(own));
  const at::Tensor root_only = own == 0 ? at::empty({size}) : at::Tensor();
  gather(root_only, mine);
  EXPECT_TRUE(own != 0 || at::equal(root_only, everyone));
  scatter(part, root_only);
  EXPECT_EQ(part.item<float>(), static_cast<float>(own));
  const at::Tensor received = at::empty({size});
  all_to_all(received, everyone + 10.0 * own);
  EXPECT_TRUE(at::equal(received, everyone * 10.0 + own));

  std::vector<int64_t> sends;
  for (int peer = 0; peer < size; ++peer) sends.push_back(peer);
  const at::Tensor uneven = at::empty({size * own});
  const std::vector<int64_t> receives(static_cast<size_t>(size), own);
  all_to_all(uneven, at::ones({size * (size - 1) / 2}), {{}, false, receives, sends});
  EXPECT_EQ(uneven.sum().item<float>(), static_cast<float>(size * own));

  const Work sent = send(mine, (own + 1) % size, {{}, /*async=*/true, /*tag=*/4});
  EXPECT_EQ(recv(part, kAnySource, {{}, false, 4})->sourceRank(), (own + size - 1) % size);
  EXPECT_EQ(part.item<float>(), static_cast<float>((own + size - 1) % size));
  sent->wait();
  const at::Tensor symmetric = symmetric_empty({4, 1000}, at::kInt);
  symmetric.fill_(1);
  all_reduce(symmetric);
  EXPECT_TRUE(at::equal(symmetric, at::full({4, 1000}, size, at::kInt)));
  monitored_barrier(std::chrono::seconds(20));

  const Group pair = new_group({0, size - 1});
  EXPECT_EQ(static_cast<bool>(pair), own == 0 || own == size - 1);
  if (pair) {
    tensor = at::ones({1});
    all_reduce(tensor, {c10d::ReduceOp::SUM, pair});
    EXPECT_EQ(tensor.item<float>(), 2.0f);
    destroy(pair);
  }
  barrier();
}

TEST_F(Init, ProcessesMeetOverAFile) {
  const std::string path =
      testing::TempDir() + "/farandole_init_test_" + std::to_string(::getpid());
  test::run_process_ranks(3, [&](comm::Communicator& communicator) {
    const InitOptions options = options_through_file(communicator, path);
    init_process_group(options);
    use_api(communicator.rank(), communicator.world_size());
    destroy();
  });
  std::remove(path.c_str());
}

TEST_F(Init, SurvivorsOfADeadRankShrinkTheDefaultGroup) {
  const std::string path =
      testing::TempDir() + "/farandole_shrink_test_" + std::to_string(::getpid());
  const auto body = [&](comm::Communicator& communicator) {
    const InitOptions options = options_through_file(communicator, path);
    init_process_group(options);
    barrier();
    if (rank() == 0) ::kill(::getpid(), SIGKILL);
    error_of<CommError>([] { barrier(); });
    const Group group = shrink_group({0});
    EXPECT_EQ(group, default_group());
    use_api(communicator.rank() - 1, communicator.world_size() - 1);
    destroy();
  };
  test::run_process_ranks(4, body, {Config(), {0}});
  std::remove(path.c_str());
}

void set_variables_of_torchrun(const comm::Communicator& communicator, const std::string& port) {
  ::setenv("RANK", std::to_string(communicator.rank()).c_str(), 1);
  ::setenv("WORLD_SIZE", std::to_string(communicator.world_size()).c_str(), 1);
  ::setenv("MASTER_ADDR", "127.0.0.1", 1);
  ::setenv("MASTER_PORT", port.c_str(), 1);
}

TEST_F(Init, ARankMayReturnBeforeRank0) {
  const std::string port = std::to_string(20000 + (::getpid() + 1) % 20000);
  test::run_process_ranks(3, [&](comm::Communicator& communicator) {
    set_variables_of_torchrun(communicator, port);
    init_process_group();
    for (int i = 0; i < 2; ++i) {
      barrier();
      // Meanwhile rank 0 has its store, which the others find.
      if (communicator.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(500));
      destroy();
      init_process_group();
      use_api(communicator.rank(), communicator.world_size());
    }
    communicator.barrier();
    destroy();
  });
}

/// The addresses at which this host listens at a port, as /proc/net/tcp and tcp6 have them.
std::vector<std::string> listening_at(const std::string& port) {
  char wanted[8];
  std::snprintf(wanted, sizeof(wanted), ":%04X", std::stoi(port));
  std::vector<std::string> found;
  for (const char* file : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream lines(file);
    std::string line;
    while (std::getline(lines, line)) {
      std::istringstream fields(line);
      std::string number;
      std::string local;
      std::string remote;
      std::string state;
      fields >> number >> local >> remote >> state;
      const size_t colon = local.find(':');
      if (state == "0A" && colon != std::string::npos && local.substr(colon) == wanted) {
        found.push_back(local.substr(0, colon));
      }
    }
  }
  return found;
}

TEST_F(Init, ProcessesMeetAsTorchrunTellsThem) {
  const std::string port = std::to_string(20000 + ::getpid() % 20000);
  test::run_process_ranks(2, [&](comm::Communicator& communicator) {
    set_variables_of_torchrun(communicator, port);
    ::setenv("FARANDOLE_JOB_SECRET", std::string(40, 's').c_str(), 1);
    init_process_group();
    EXPECT_EQ(listening_at(port), std::vector<std::string>{"0100007F"});  // loopback alone
    use_api(communicator.rank(), communicator.world_size());
    communicator.barrier();  // rank 0 holds the store: it leaves last
    destroy();
  });
}

}  // namespace
}  // namespace farandole
