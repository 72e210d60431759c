// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/checkpoint_writer.h"

#include <ATen/ops/full.h>
#include <dirent.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "ddp/replica_ranks.h"
#include "farandole/checkpoint/checkpoint_reader.h"
#include "farandole/error.h"
#include "farandole/process_group/init.h"
#include "support/ranks.h"

namespace {

std::atomic<bool> g_cannot_exchange{false};
std::atomic<bool> g_syncs_for_ever{false};

}  // namespace

// In place of libc's, for the library too: what file systems without RENAME_EXCHANGE do, as NFS.
extern "C" int renameat2(int from_folder, const char* from, int to_folder, const char* to,
                         unsigned int flags) noexcept {
  if (g_cannot_exchange && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_renameat2, from_folder, from, to_folder, to, flags));
}

// A disk that does not answer.
extern "C" int fsync(int descriptor) {
  while (g_syncs_for_ever) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  return static_cast<int>(::syscall(SYS_fsync, descriptor));
}

namespace farandole {
namespace {

namespace fs = std::filesystem;

using test::run_replicas;
using testing::HasSubstr;

class CheckpointWriterTo : public testing::Test {
 protected:
  CheckpointWriterTo() { fs::remove_all(path_); }
  ~CheckpointWriterTo() override {
    g_cannot_exchange = false;
    fs::remove_all(path_);
  }

  std::string at(const std::string& name) const { return path_ + "/" + name; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& each : fs::directory_iterator(path_)) {
      names.push_back(each.path().filename().string());
    }
    return names;
  }

  const std::string path_ =
      testing::TempDir() + "farandole_checkpoint_writer_test_" + std::to_string(::getpid());
};

std::vector<TensorSlice> slices_of(int value, int64_t elements = 4) {
  TensorSlice slice;
  slice.key = "weight";
  slice.elements = at::full({elements}, value, at::kFloat);
  slice.shape = {elements};
  slice.strides = {1};
  return {slice};
}

void save(CheckpointWriter& writer, const std::string& name, int value) {
  SaveOptions options;
  options.name = name;
  writer.save(slices_of(value), std::to_string(value), options);
}

/// A save of "best" was killed after the first of its two renames, and after the second one.
TEST_F(CheckpointWriterTo, GoesOnAfterAKillWhereFoldersCannotBeExchanged) {
  g_cannot_exchange = true;
  for (const bool was_replaced : {false, true}) {
    run_replicas("shm", 1, [&](const Group& group) {
      fs::remove_all(path_);
      CheckpointWriter writer(path_, group);
      save(writer, "best", 1);
      if (was_replaced) {
        fs::copy(at("best"), at("best.replaced"), fs::copy_options::recursive);
      } else {
        fs::rename(at("best"), at("best.replaced"));
      }
      for (int value = 2; value <= 4; ++value) {
        save(writer, "best", value);
        EXPECT_EQ(CheckpointReader(path_).values(), std::to_string(value));
        EXPECT_THAT(names(), testing::UnorderedElementsAre(".writer", "best", "latest"));
      }
    });
  }
}

TEST_F(CheckpointWriterTo, BringsBackWhatAKilledSaveMovedAside) {
  run_replicas("shm", 1, [&](const Group& group) {
    {
      CheckpointWriter writer(path_, group);
      save(writer, "best", 1);
      save(writer, "other", 2);
      save(writer, "own.replaced", 3);
    }
    fs::rename(at("best"), at("best.replaced"));
    fs::copy(at("other"), at("other.replaced"), fs::copy_options::recursive);
    CheckpointWriter writer(path_, group);
    save(writer, "new", 4);
    EXPECT_THAT(names(), testing::UnorderedElementsAre(".writer", "best", "latest", "new", "other",
                                                       "own.replaced"));
    EXPECT_EQ(CheckpointReader(at("best")).values(), "1");
  });
}

TEST_F(CheckpointWriterTo, SaysThatACheckpointIsInPlaceIfAnErrorComesAfterThat) {
  run_replicas("shm", 2, [&](const Group& group) {
    CheckpointWriter writer(path_, group);
    if (group->getRank() == 0) fs::create_directories(at("latest/in the way"));
    const std::string text = test::error_of<CheckpointError>([&] { save(writer, "new", 1); });
    EXPECT_THAT(text, HasSubstr("'" + at("latest") + "' could not be replaced"));
    EXPECT_THAT(text, HasSubstr("the checkpoint is complete and can be loaded by its name"));
    EXPECT_THAT(text, testing::Not(HasSubstr("nothing was changed")));
    EXPECT_EQ(CheckpointReader(at("new")).values(), "1");
  });
}

constexpr int kOfThread = 1;
constexpr int kIdleClass = 3;

/// The thread that writes has the number 19 as its nice value; 0: there is none.
int saving_thread() {
  int found = 0;
  for (const auto& each : fs::directory_iterator("/proc/self/task")) {
    const int thread = std::stoi(each.path().filename().string());
    if (::getpriority(PRIO_PROCESS, static_cast<id_t>(thread)) == 19) found = thread;
  }
  return found;
}

/// The ranks save asynchronously, and rank 1's file is never written.
void save_for_ever(int rank, CheckpointWriter& writer) {
  g_syncs_for_ever = rank == 1;
  SaveOptions options;
  options.asynchronous = true;
  writer.save(slices_of(1), "1", options);
}

/// Ranks in processes of their own; `body(rank, barrier, writer)`.
void run_savers(int ranks, const std::string& path, std::vector<int> killed,
                const std::function<void(comm::Communicator&, CheckpointWriter&)>& body) {
  const auto run = [&](comm::Communicator& communicator) {
    InitOptions options;
    options.rank = communicator.rank();
    options.world_size = communicator.world_size();
    options.init_method = "file://" + path + ".store";
    init_process_group(options);
    CheckpointWriter writer(path);
    body(communicator, writer);
  };
  test::run_process_ranks(ranks, run, {Config(), std::move(killed)});
  fs::remove(path + ".store");
}

TEST_F(CheckpointWriterTo, HearsOfADeathAfterTheGroupWasDestroyed) {
  run_savers(3, path_, {1}, [](comm::Communicator& communicator, CheckpointWriter& writer) {
    const int rank = communicator.rank();
    save_for_ever(rank, writer);
    if (rank != 1) destroy();
    communicator.barrier();
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_THAT(test::error_of<PeerFailure>([&] { writer.wait(); }), HasSubstr("rank 1"));
    EXPECT_LT(std::chrono::steady_clock::now() - begin, test::detection_limit());
  });
}

/// A thread of the class of idle ones writes nothing while others always do.
TEST_F(CheckpointWriterTo, WritesWithAShareOfTheDisk) {
  run_savers(2, path_, {1}, [](comm::Communicator& communicator, CheckpointWriter& writer) {
    const int rank = communicator.rank();
    save_for_ever(rank, writer);
    if (rank == 0) {
      const auto begin = std::chrono::steady_clock::now();
      int thread = 0;
      while (thread == 0 && std::chrono::steady_clock::now() - begin < test::detection_limit()) {
        thread = saving_thread();
      }
      EXPECT_NE(thread, 0);
      EXPECT_NE(::syscall(SYS_ioprio_get, kOfThread, thread) >> 13, kIdleClass);
    }
    communicator.barrier();
    if (rank == 1) ::kill(::getpid(), SIGKILL);
    test::error_of<PeerFailure>([&] { writer.wait(); });
  });
}

}  // namespace
}  // namespace farandole
