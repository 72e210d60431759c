// SPDX-License-Identifier: Apache-2.0
// Forked children of a rank, such as DataLoader workers: they may drop what they inherited of a
// group at any time, and neither hang nor disturb the rank.
#include "support/forked_child.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "support/directory_store.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;
using ::testing::HasSubstr;

/// As run_process_ranks(), with a group that `body` owns and can destroy.
void run_owning_ranks(int world_size,
                      const std::function<void(std::unique_ptr<Communicator>)>& body) {
  const TemporaryDirectory folder;
  run_process_ranks(world_size, [&](Communicator& group) {
    DirectoryStore store(folder.path());
    body(group.shrink({}, store));
  });
}

void sum(Communicator& group) {
  std::vector<float> data(50000, 1.0F);
  group.all_reduce(data.data(), data.data(), data.size(), DataType::kFloat32, ReduceOp::kSum);
  ASSERT_EQ(data.front(), static_cast<float>(group.world_size()));
  ASSERT_EQ(data.back(), static_cast<float>(group.world_size()));
}

TEST(ForkedChild, DropsTransfersInFlightAndTheRankFinishesThem) {
  run_owning_ranks(2, [](std::unique_ptr<Communicator> group) {
    const size_t size = 5000000;  // more than a channel holds
    std::vector<char> data(size, group->rank() == 0 ? 'x' : ' ');
    std::shared_ptr<comm::Transfer> transfer;
    if (group->rank() == 0) transfer = group->send(data.data(), size, 1, 0);
    const auto later = group->receive(data.data(), 0, group->rank(), 7);
    const auto memory = group->shared_memory()->allocate_symmetric(100);
    ForkedChild child([&, held = memory]() mutable {
      transfer.reset();
      held.reset();
      group.reset();
      return true;
    });
    EXPECT_TRUE(child.succeeded());
    sum(*group);
    if (group->rank() == 1) transfer = group->receive(data.data(), size, 0, 0);
    transfer->wait({});
    EXPECT_EQ(data, std::vector<char>(size, 'x'));
    group->send(data.data(), 0, group->rank(), 7)->wait({});
    later->wait({});
    sum(*group);
  });
}

TEST(ForkedChild, IsToldThatATransferIsNotItsOwn) {
  run_owning_ranks(2, [](std::unique_ptr<Communicator> group) {
    char byte = 0;
    const auto transfer = group->receive(&byte, 1, 1 - group->rank(), 0);
    ForkedChild child([&] {
      const auto refused = [](const auto& call) {
        return raised<CommError>(call).find("forked child") != std::string::npos;
      };
      bool good = refused([&] { transfer->is_done(); }) && refused([&] { transfer->wait({}); }) &&
                  refused([&] { transfer->when_done([] {}); }) &&
                  refused([&] { group->send(&byte, 1, 0, 0); });
      group.reset();
      return good && refused([&] { transfer->is_done(); });
    });
    EXPECT_TRUE(child.succeeded());
    group->barrier();  // until the other rank has forked too
    group->send(&byte, 1, 1 - group->rank(), 0)->wait({});
    transfer->wait({});
    group->barrier();
  });
}

TEST(ForkedChild, ComesAndGoesWhileItsRankTrains) {
  run_owning_ranks(2, [](std::unique_ptr<Communicator> group) {
    const auto memory = group->shared_memory()->allocate_symmetric(4096);
    for (int epoch = 0; epoch < (thin_matrix() ? 3 : 15); ++epoch) {
      std::vector<std::unique_ptr<ForkedChild>> workers;
      for (int worker = 0; worker < 3; ++worker) {
        workers.push_back(std::make_unique<ForkedChild>([&] {
          std::this_thread::sleep_for(milliseconds(2 * worker));
          if (worker == 0) group.reset();
          return true;
        }));
      }
      char byte = 0;
      const int peer = 1 - group->rank();
      const auto receive = group->receive(&byte, 1, peer, 0);
      sum(*group);
      group->send("y", 1, peer, 0)->wait({});
      receive->wait({});
      EXPECT_EQ(byte, 'y');
      workers.pop_back();  // killed, as DataLoader kills workers that are late
      for (const auto& worker : workers) EXPECT_TRUE(worker->succeeded());
    }
    sum(*group);
  });
}

TEST(ForkedChild, DropsItsCopiesWhateverOtherThreadsDidAtThatMoment) {
  run_owning_ranks(2, [](std::unique_ptr<Communicator> group) {
    // Symmetric buffers, and messages that are kept until somebody asks for them.
    auto memory = group->shared_memory()->allocate_symmetric(400000);
    std::atomic<bool> going{true};
    std::thread trains([&] {
      auto* data = static_cast<float*>(memory->local());
      const int peer = 1 - group->rank();
      for (float go_on = 1; go_on != 0;) {
        std::vector<char> out(3000, 'm');
        std::vector<char> in(3000);
        const auto send = group->send(out.data(), out.size(), peer, 0);
        group->all_reduce(data, data, 100000, DataType::kFloat32, ReduceOp::kMax);
        group->receive(in.data(), in.size(), peer, 0)->wait({});
        send->wait({});
        go_on = going ? 1.0F : 0.0F;
        group->all_reduce(&go_on, &go_on, 1, DataType::kFloat32, ReduceOp::kMax);
      }
    });
    for (int i = 0; i < (whole_matrix() ? 1000 : 20); ++i) {
      ForkedChild child([&] {
        memory.reset();
        group.reset();
        return true;
      });
      EXPECT_TRUE(child.succeeded());
    }
    going = false;
    trains.join();
  });
}

/// Fills the symmetric memory of a rank.
void fill(const comm::SymmetricMemory& memory, char value) {
  std::memset(memory.local(), value, memory.bytes());
}

/// Whether all of it has one value.
bool is_filled(const comm::SymmetricMemory& memory, int rank, char value) {
  const auto* const bytes = static_cast<const char*>(memory.peer(rank));
  return std::all_of(bytes, bytes + memory.bytes(), [=](char byte) { return byte == value; });
}

/// A child reads what there is of both ranks and overwrites it.
bool scribbles(const comm::SymmetricMemory& memory) {
  for (int rank = 0; rank < 2; ++rank) {
    if (!is_filled(memory, rank, static_cast<char>('a' + rank))) return false;
    std::memset(memory.peer(rank), 'x', memory.bytes());
    if (!is_filled(memory, rank, 'x')) return false;
  }
  return true;
}

TEST(ForkedChild, HasCopiesOfItsOwnOfSymmetricMemory) {
  run_owning_ranks(2, [](std::unique_ptr<Communicator> group) {
    for (const size_t bytes : {size_t{1}, size_t{100000}, size_t{5000000}}) {
      const auto memory = group->shared_memory()->allocate_symmetric(bytes);
      fill(*memory, static_cast<char>('a' + group->rank()));
      group->barrier();
      ForkedChild child([&] {
        if (!scribbles(*memory)) return false;
        fill(*memory, 'y');
        ForkedChild grandchild([&] {
          if (!is_filled(*memory, group->rank(), 'y')) return false;
          fill(*memory, 'z');
          return true;
        });
        return grandchild.succeeded() && is_filled(*memory, group->rank(), 'y');
      });
      EXPECT_TRUE(child.succeeded());
      group->barrier();
      for (int rank = 0; rank < 2; ++rank) {
        EXPECT_TRUE(is_filled(*memory, rank, static_cast<char>('a' + rank)));
      }
      group->barrier();
      sum(*group);
    }
  });
}

TEST(ForkedChild, ReadsUntilItWritesWhatTheRankWrites) {
  run_owning_ranks(1, [](std::unique_ptr<Communicator> group) {
    const auto memory = group->shared_memory()->allocate_symmetric(1);
    auto* const byte = static_cast<char*>(memory->local());
    std::array<int, 2> signal{};
    ASSERT_EQ(::pipe(signal.data()), 0);
    *byte = 'a';
    ForkedChild child([&] {
      char news = 0;
      if (::read(signal[0], &news, 1) != 1 || *byte != 'b') return false;
      *byte = 'c';
      return ::read(signal[0], &news, 1) == 1 && *byte == 'c';
    });
    *byte = 'b';
    ASSERT_EQ(::write(signal[1], "1", 1), 1);
    std::this_thread::sleep_for(milliseconds(20));
    *byte = 'd';
    ASSERT_EQ(::write(signal[1], "2", 1), 1);
    EXPECT_TRUE(child.succeeded());
    EXPECT_EQ(*byte, 'd');
    for (const int each : signal) ::close(each);
  });
}

/// Lets this process have `limit` descriptors for a time.
class FewDescriptors {
 public:
  explicit FewDescriptors(rlim_t limit) {
    ::getrlimit(RLIMIT_NOFILE, &before_);
    rlimit few = before_;
    few.rlim_cur = limit;
    ::setrlimit(RLIMIT_NOFILE, &few);
  }
  ~FewDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }
  FewDescriptors(const FewDescriptors&) = delete;
  FewDescriptors& operator=(const FewDescriptors&) = delete;

 private:
  rlimit before_{};
};

TEST(ForkedChild, HasCopiesOfItsOwnWhereDescriptorsAreFewOrWereClosed) {
  run_owning_ranks(2, [](std::unique_ptr<Communicator> group) {
    std::vector<std::shared_ptr<comm::SymmetricMemory>> memories;
    {
      const FewDescriptors few(100);
      for (int i = 0; i < 120; ++i) {
        memories.push_back(group->shared_memory()->allocate_symmetric(5000));
        fill(*memories.back(), static_cast<char>('a' + group->rank()));
      }
      const int next = ::dup(0);
      EXPECT_TRUE(next >= 0 && next <= 60) << next;  // half of them are the program's
      ::close(next);
    }
    group->barrier();
    for (const bool closes : {false, true}) {
      const int other = ::open("/dev/zero", O_RDWR | O_CLOEXEC);
      if (closes) {  // as a program that makes itself a daemon does
        for (int number = 20; number < 40; ++number) ::dup2(other, number);
      }
      ForkedChild child([&] {
        return std::all_of(memories.begin(), memories.end(),
                           [](const auto& memory) { return scribbles(*memory); });
      });
      EXPECT_TRUE(child.succeeded());
      ::close(other);
      group->barrier();
      for (const auto& memory : memories) {
        EXPECT_TRUE(is_filled(*memory, 0, 'a') && is_filled(*memory, 1, 'b'));
      }
    }
    group->barrier();
  });
}

}  // namespace
}  // namespace farandole::test
