// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/bootstrap/descriptor_exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <thread>

#include "comm/shm/bootstrap/unix_socket.h"
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

/// Runs `gate` before it first reads where rank 0 listens.
class GatedStore : public DirectoryStore {
 public:
  GatedStore(std::string directory, std::function<void()> gate)
      : DirectoryStore(std::move(directory)), gate_(std::move(gate)) {}
  std::optional<std::string> get(const std::string& key, milliseconds timeout) override {
    if (key.find("/exchange") != std::string::npos) {
      if (const auto gate = std::exchange(gate_, nullptr)) gate();
    }
    return DirectoryStore::get(key, timeout);
  }

 private:
  std::function<void()> gate_;
};

constexpr size_t kTokenBytes = 32;

/// What rank 0 tells the others of its socket, once it does.
std::string token_in(const std::string& folder) {
  const auto deadline = std::chrono::steady_clock::now() + rank_deadline() / 4;
  while (std::chrono::steady_clock::now() < deadline) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename().string();
      if (name.find("_exchange") == std::string::npos || name.find("partial") != name.npos)
        continue;
      std::string token;
      std::ifstream(entry.path()) >> token;
      if (!token.empty()) return token;
    }
    std::this_thread::sleep_for(milliseconds(5));
  }
  return "";
}

/// A connection to the group's socket; -1 if there is none.
int call(const std::string& token) {
  const int fd = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string name = "farandole-" + token;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return ::connect(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 ? fd : -1;
}

/// What rank 1 would say: the token, its number, and room to the size of a message.
void say_hello(int fd, const std::string& token) {
  constexpr size_t kBytes = kTokenBytes + 2 * sizeof(int32_t) + comm::shm::kMaxRanks + 512;
  char hello[(kBytes + 3) / 4 * 4] = {};  // sizes are rounded up to whole words
  std::memcpy(hello, token.data(), token.size());
  const int32_t rank = 1;
  std::memcpy(hello + token.size(), &rank, sizeof(rank));
  ::send(fd, hello, sizeof(hello), MSG_NOSIGNAL);
}

/// Forms a group of two while `stranger` gets at its socket before rank 1 does. The stranger is a
/// process of its own, which knows the token.
void form_beside(const std::function<bool(const std::string& token)>& stranger) {
  const TemporaryDirectory folder;
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
  ForkedChild process([&] { return stranger(token_in(folder.path())); });
  const auto run_rank = [&](int rank) {
    GatedStore store(folder.path(), [&] {
      if (rank == 0) return;
      EXPECT_TRUE(process.succeeded());
    });
    const auto group = join(store, rank, rank_deadline() / 2);
    int sum = rank + 1;
    group->all_reduce(&sum, &sum, 1, comm::DataType::kInt32, comm::ReduceOp::kSum);
    return sum;
  };
  auto first = std::async(std::launch::async, run_rank, 0);
  EXPECT_EQ(run_rank(1), 3);
  EXPECT_EQ(first.get(), 3);
}

TEST(DescriptorExchange, RefusesAnotherUserWhoKnowsTheTokenAndTheGroupStillForms) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  form_beside([](const std::string& token) {
    constexpr uid_t kNobody = 65534;
    if (::setresuid(kNobody, kNobody, kNobody) != 0) return false;
    const int fd = call(token);
    if (fd < 0) return false;
    say_hello(fd, token);
    char answer = 0;
    return ::recv(fd, &answer, 1, 0) <= 0;  // it hangs up
  });
}

TEST(DescriptorExchange, RefusesAnotherProcessThatTakesARanksPlace) {
  form_beside([](const std::string& token) {
    const int fd = call(token);
    if (fd < 0) return false;
    say_hello(fd, token);
    char answer = 0;
    return ::recv(fd, &answer, 1, 0) <= 0;
  });
}

TEST(DescriptorExchange, IsNotHeldUpByConnectionsThatAreSilentOrTalkNonsense) {
  form_beside([](const std::string& token) {
    if (::fork() == 0) {  // stays connected until the group has formed
      for (int i = 0; i < 40; ++i) {
        const int fd = call(token);
        if (i % 4 == 1) ::send(fd, "nonsense", 8, MSG_NOSIGNAL);
        if (i % 4 == 2) ::close(fd);
      }
      std::this_thread::sleep_for(milliseconds(3000));
      ::_exit(0);
    }
    std::this_thread::sleep_for(milliseconds(300));
    return !token.empty();
  });
}

#ifndef FARANDOLE_SANITIZED  // UBSan opens a pipe for each look at an object's type
TEST(DescriptorExchange, HangsUpOnAStrangerAndNotOnARankIfItCanOpenNoMoreFiles) {
  ForkedChild process([] {
    const std::string token = "test-" + std::to_string(::getpid());
    const comm::shm::Descriptor listener = comm::shm::listen_as("farandole-" + token);
    std::vector<comm::shm::Descriptor> callers;
    const auto accept = [&](bool is_awaited) {
      comm::shm::accept_caller(
          listener.get(), 10, [&](int) { return is_awaited; }, &callers);
    };
    for (int i = 0; i < 3; ++i) call(token);
    const int next = ::dup(0);
    ::close(next);
    const rlimit files{static_cast<rlim_t>(next) + 1, 4096};
    ::setrlimit(RLIMIT_NOFILE, &files);
    accept(true);
    const std::string error = raised<SystemError>([&] { accept(true); });
    EXPECT_THAT(error, ::testing::HasSubstr("(errno 24)"));
    EXPECT_EQ(callers.size(), 1U);
    accept(false);  // which makes room
    EXPECT_EQ(callers.size(), 0U);
    accept(false);
    EXPECT_EQ(callers.size(), 1U);
    return !::testing::Test::HasFailure();
  });
  EXPECT_TRUE(process.succeeded());
}
#endif

}  // namespace
}  // namespace farandole::test
