// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/host_link.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>

#include "comm/hosts/message_relay.h"
#include "comm/tcp/network_address.h"
#include "comm/tcp/peer_user.h"
#include "farandole/error.h"
#include "support/forked_child.h"
#include "support/no_more_threads.h"
#include "support/raised.h"

namespace farandole::comm::hosts {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using Clock = HostLink::Clock;

constexpr seconds kPatience{30};

std::string subject() { return "the test"; }

/// `world` ranks, each alone on its host.
Topology topology_of(int rank, int world) {
  Topology topology;
  topology.rank = rank;
  topology.world_size = world;
  for (int each = 0; each < world; ++each) {
    topology.host_of_rank.push_back(each);
    topology.host_names.push_back("host" + std::to_string(each));
    topology.pids.push_back(static_cast<int>(::getpid()));
  }
  topology.session = "0123456789abcdef0123456789abcdef";
  return topology;
}

std::vector<int> others(int rank, int world) {
  std::vector<int> peers;
  for (int each = 0; each < world; ++each) {
    if (each != rank) peers.push_back(each);
  }
  return peers;
}

LinkOptions options() {
  LinkOptions made;
  made.group = "test";
  made.network_interface = "lo";
  made.silence = milliseconds(10000);
  made.timeout = kPatience;
  return made;
}

/// Runs `body(link)` on `world` ranks, threads with a link to all others each.
template <class Body>
void run_ranks(int world, int lanes, const Body& body) {
  InProcessStore store;
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < world; ++rank) {
    ranks.emplace_back([&, rank] {
      HostLink link(store, topology_of(rank, world), others(rank, world), lanes, options());
      body(rank, link);
    });
  }
  for (std::thread& each : ranks) each.join();
}

std::vector<uint32_t> pattern(size_t count, int from, int to) {
  std::vector<uint32_t> values(count);
  std::iota(values.begin(), values.end(), static_cast<uint32_t>(from * 1000003 + to * 7919));
  return values;
}

TEST(HostLink, MovesBytesBetweenAllRanksBothWaysAtOnce) {
  for (const int world : {2, 3, 5}) {
    run_ranks(world, 2, [&](int rank, HostLink& link) {
      for (const size_t count : {size_t{1}, size_t{1000}, size_t{3'000'017}}) {
        for (int lane = 0; lane < 2; ++lane) {
          std::vector<std::vector<uint32_t>> in(static_cast<size_t>(world));
          std::vector<std::vector<uint32_t>> out(static_cast<size_t>(world));
          for (const int peer : link.peers()) {
            out[static_cast<size_t>(peer)] = pattern(count, rank, peer);
            in[static_cast<size_t>(peer)].resize(count);
            ByteStream& stream = link.stream(peer, lane);
            stream.send(out[static_cast<size_t>(peer)].data(), count * 4);
            stream.receive(in[static_cast<size_t>(peer)].data(), count * 4);
          }
          link.drive(lane, {kPatience, Clock::now() + kPatience, nullptr, subject});
          for (const int peer : link.peers()) {
            EXPECT_EQ(in[static_cast<size_t>(peer)], pattern(count, peer, rank));
          }
        }
      }
    });
  }
}

TEST(HostLink, CountsBytesWhileAMessageIsUnderWay) {
  run_ranks(2, 1, [&](int rank, HostLink& link) {
    constexpr size_t kBytes = 8 << 20;
    std::vector<char> bytes(kBytes, 'x');
    ByteStream& stream = link.stream(1 - rank, 0);
    uint64_t most = 0;
    if (rank == 0) stream.send(bytes.data(), kBytes);
    if (rank == 1) stream.receive(bytes.data(), kBytes);
    const auto is_done = [&] {
      EXPECT_GE(stream.sent() + stream.received(), most);
      most = stream.sent() + stream.received();
      return most >= kBytes;
    };
    link.drive(0, {kPatience, Clock::now() + kPatience, is_done, subject});
    EXPECT_EQ(most, kBytes);
  });
}

TEST(HostLink, AnAbortReachesRanksThatWait) {
  run_ranks(3, 1, [&](int rank, HostLink& link) {
    if (rank == 1) {
      link.abort("the disk is full");
      return;
    }
    char byte = 0;
    link.stream(1, 0).receive(&byte, 1);
    try {
      link.drive(0, {kPatience, Clock::now() + kPatience, nullptr, subject});
      FAIL() << "nothing was thrown";
    } catch (const AbortedError& error) {
      EXPECT_THAT(error.what(),
                  AllOf(HasSubstr("the test was aborted by rank "), HasSubstr("the disk is full")));
    } catch (const PeerFailure& error) {
      FAIL() << error.what();
    }
  });
}

TEST(HostLink, ARankThatLeavesWhilePeersNeedItIsNamed) {
  run_ranks(2, 1, [&](int rank, HostLink& link) {
    if (rank == 1) return;  // its link goes
    char byte = 0;
    link.stream(1, 0).receive(&byte, 1);
    try {
      link.drive(0, {kPatience, Clock::now() + kPatience, nullptr, subject});
      FAIL() << "nothing was thrown";
    } catch (const PeerFailure& error) {
      EXPECT_EQ(error.rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 (pid "));
      EXPECT_THAT(error.what(), HasSubstr(" on host1)"));
    }
  });
}

TEST(HostLink, ARankThatLeavesWhileNobodyNeedsItIsNoFailure) {
  std::atomic<bool> has_left{false};
  InProcessStore store;
  std::thread peer([&] {
    { HostLink link(store, topology_of(1, 2), {0}, 1, options()); }
    has_left = true;
  });
  LinkOptions mine = options();
  std::atomic<int> failures{0};
  mine.on_failure = [&](const std::string&, int, int) { ++failures; };
  HostLink link(store, topology_of(0, 2), {1}, 1, mine);
  peer.join();
  std::this_thread::sleep_for(milliseconds(200));
  link.check_usable(subject);
  EXPECT_EQ(failures, 0);
}

TEST(HostLink, ARankThatReachesItsDeadlineNamesTheLateOne) {
  std::atomic<bool> may_go{false};
  run_ranks(2, 1, [&](int rank, HostLink& link) {
    if (rank == 1) {
      while (!may_go) std::this_thread::sleep_for(milliseconds(5));
      return;
    }
    char byte = 0;
    link.stream(1, 0).receive(&byte, 1);
    try {
      link.drive(0, {milliseconds(200), Clock::now() + milliseconds(200), nullptr, subject});
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.rank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("rank 1 (pid "));
    }
    may_go = true;
  });
}

/// A killed process, beside a rank that waits for its bytes and one that computes.
TEST(HostLink, AKilledProcessIsNamedOnEveryRankAndTellsTheProgram) {
  constexpr int kWorld = 3;
  // The killed rank is a process of its own, which shares no store: its addresses come by a pipe.
  InProcessStore store;
  int to_child[2];
  int to_parent[2];
  ASSERT_EQ(::pipe(to_child), 0);
  ASSERT_EQ(::pipe(to_parent), 0);
  // The child has the highest rank: it connects to the others and nobody to it.
  const pid_t child = ::fork();
  if (child == 0) {
    InProcessStore own;
    for (int rank = 0; rank < kWorld - 1; ++rank) {
      char address[64] = {};
      if (::read(to_child[0], address, sizeof(address)) != sizeof(address)) ::_exit(1);
      own.set("test/" + topology_of(0, kWorld).session + "/tcp/" + std::to_string(rank), address);
    }
    HostLink link(own, topology_of(kWorld - 1, kWorld), others(kWorld - 1, kWorld), 1, options());
    [[maybe_unused]] const ssize_t told = ::write(to_parent[1], "x", 1);
    ::pause();
    ::_exit(0);
  }
  std::atomic<int> told{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kWorld - 1; ++rank) {
    ranks.emplace_back([&, rank] {
      LinkOptions mine = options();
      mine.on_failure = [&](const std::string& reason, int lost, int) {
        EXPECT_THAT(reason, HasSubstr("rank 2 (pid "));
        EXPECT_EQ(lost, 2);
        ++told;
      };
      HostLink link(store, topology_of(rank, kWorld), others(rank, kWorld), 1, mine);
      if (rank == 0) {
        char byte = 0;
        EXPECT_EQ(::read(to_parent[0], &byte, 1), 1);
        ::kill(child, SIGKILL);
        link.stream(2, 0).receive(&byte, 1);
        try {
          link.drive(0, {kPatience, Clock::now() + kPatience, nullptr, subject});
          ADD_FAILURE() << "nothing was thrown";
        } catch (const PeerFailure& error) {
          EXPECT_EQ(error.rank(), 2);
        }
      }
      const auto until = Clock::now() + kPatience;
      while (told < kWorld - 1 && Clock::now() < until) {
        std::this_thread::sleep_for(milliseconds(5));
      }
      EXPECT_THROW(link.check_usable(subject), PeerFailure);
    });
  }
  for (int rank = 0; rank < kWorld - 1; ++rank) {
    const auto address = store.get(
        "test/" + topology_of(0, kWorld).session + "/tcp/" + std::to_string(rank), kPatience);
    ASSERT_TRUE(address);
    char text[64] = {};
    address->copy(text, sizeof(text) - 1);
    ASSERT_EQ(::write(to_child[1], text, sizeof(text)), static_cast<ssize_t>(sizeof(text)));
  }
  for (std::thread& each : ranks) each.join();
  EXPECT_EQ(told, kWorld - 1);
  int status = 0;
  ::waitpid(child, &status, 0);
  for (const int end : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) ::close(end);
}

/// A link of rank 0 and rank 1 forms and carries a number each way.
void exchange_numbers(comm::Store& store, int rank, const LinkOptions& options) {
  HostLink link(store, topology_of(rank, 2), {1 - rank}, 1, options);
  int mine = rank + 40;
  int other = 0;
  link.stream(1 - rank, 0).send(&mine, sizeof(mine));
  link.stream(1 - rank, 0).receive(&other, sizeof(other));
  link.drive(0, {kPatience, Clock::now() + kPatience, nullptr, subject});
  EXPECT_EQ(other, 41 - rank);
}

/// Clients that know the address and not the session: silent ones, ones that talk nonsense, ones
/// that claim to be a rank, and many of them.
/// What rank 0 is told that waits for a byte of rank 1 while `harm(link)` happens to both.
template <class Harm>
std::string told_after(const Harm& harm) {
  std::string told;
  run_ranks(2, 1, [&](int rank, HostLink& link) {
    char byte = 0;
    if (rank == 0) link.stream(1, 0).receive(&byte, 1);
    if (rank == 0) harm(link);
    const auto wait_for_the_end = [&] {
      const auto until = Clock::now() + kPatience;
      while (Clock::now() < until) {
        link.check_usable(subject);
        std::this_thread::sleep_for(milliseconds(5));
      }
    };
    try {
      rank == 0 ? link.drive(0, {kPatience, Clock::now() + kPatience, nullptr, subject})
                : wait_for_the_end();
      ADD_FAILURE() << "nothing was thrown on rank " << rank;
    } catch (const Error& error) {
      if (rank == 0) told = error.what();
    }
  });
  return told;
}

TEST(HostLink, ALinkWhoseThreadCannotStartIsATypedError) {
  InProcessStore store;
  const test::NoMoreThreads limit;
  EXPECT_THAT(test::raised<SystemError>(
                  [&] { HostLink(store, topology_of(0, 2), others(0, 2), 1, options()); }),
              HasSubstr("starting a thread for connections between hosts failed"));
}

/// poll() fails with EINVAL if it gets more descriptors than the limit allows.
TEST(HostLink, APollThatFailsEndsTheLinkAndNotTheProcess) {
#if defined(FARANDOLE_SANITIZED_ADDRESS)
  GTEST_SKIP()
      << "AddressSanitizer's build checks virtual calls with pipes, which need descriptors";
#endif
  test::ForkedChild child([] {
    const std::string told = told_after([](HostLink&) {
      const rlimit few{1, 1 << 10};
      ::setrlimit(RLIMIT_NOFILE, &few);
    });
    std::fprintf(stderr, "%s\n", told.c_str());
    return told.find("poll failed") != std::string::npos && !testing::Test::HasFailure();
  });
  EXPECT_TRUE(child.succeeded());
}

/// Puts another file in the place of each descriptor that is a socket, or that /proc shows so.
void replace_descriptors(const std::string& kind) {
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (int number = 3; number < 1000; ++number) {
    char target[64] = {};
    const std::string link = "/proc/self/fd/" + std::to_string(number);
    if (number == null || ::readlink(link.c_str(), target, sizeof(target) - 1) < 0) continue;
    if (std::string(target).find(kind) != std::string::npos) ::dup2(null, number);
  }
}

TEST(HostLink, AProgramThatClosesItsDescriptorsIsTold) {
  for (const char* const kind : {"socket:", "eventfd"}) {
    test::ForkedChild child([kind] {
      const std::string told = told_after([&](HostLink&) { replace_descriptors(kind); });
      std::fprintf(stderr, "%s\n", told.c_str());
      return told.find("closed a file descriptor that it has not opened") != std::string::npos &&
             told.find("has not answered") == std::string::npos && !testing::Test::HasFailure();
    });
    EXPECT_TRUE(child.succeeded()) << kind;
  }
}

TEST(HostLink, AResetIsNotToldAsAnEnd) {
  test::ForkedChild child([] {
    const std::string told = told_after([](HostLink&) {
      // A connection that is closed in this way sends a reset: those of both ranks here, of which
      // each sees the other's.
      for (int number = 3; number < 1000; ++number) {
        int error = 0;
        socklen_t size = sizeof(error);
        sockaddr_storage peer{};
        socklen_t peer_size = sizeof(peer);
        if (::getpeername(number, reinterpret_cast<sockaddr*>(&peer), &peer_size) != 0) continue;
        sockaddr unconnected{};
        unconnected.sa_family = AF_UNSPEC;
        // Not by ::connect(), which ThreadSanitizer takes for a descriptor that is made anew, and
        // so for a race with the threads of the links.
        ::syscall(SYS_connect, number, &unconnected, sizeof(unconnected));
        ::getsockopt(number, SOL_SOCKET, SO_ERROR, &error, &size);
        break;
      }
    });
    std::fprintf(stderr, "%s\n", told.c_str());
    return told.find("the connection was reset") != std::string::npos &&
           !testing::Test::HasFailure();
  });
  EXPECT_TRUE(child.succeeded());
}

TEST(HostLink, StrangersNeitherJoinNorHoldUpTheRanks) {
  InProcessStore store;
  std::atomic<bool> ends{false};
  std::thread strangers([&] {
    const auto address = store.get("test/" + topology_of(0, 2).session + "/tcp/0", kPatience);
    ASSERT_TRUE(address);
    const tcp::NetworkAddress target = tcp::NetworkAddress::parse(*address);
    std::vector<int> sockets;
    for (int i = 0; i < 300; ++i) {
      const int socket = ::socket(target.family(), SOCK_STREAM, 0);
      if (::connect(socket, target.get(), target.size()) == 0 && i % 2 == 1) {
        char text[256];
        std::memset(text, i, sizeof(text));
        if (i % 4 == 1) std::memcpy(text, "FARANDOL\2\0\0\0\1\0\0\0", 16);
        ::send(socket, text, sizeof(text), MSG_NOSIGNAL);
      }
      sockets.push_back(socket);
    }
    ends = true;
    for (const int socket : sockets) ::close(socket);
  });
  const auto exchange = [&](int rank) { exchange_numbers(store, rank, options()); };
  std::thread rank0([&] { exchange(0); });
  while (!ends) std::this_thread::sleep_for(milliseconds(1));
  std::thread rank1([&] { exchange(1); });
  rank0.join();
  rank1.join();
  strangers.join();
}

const char* const kSecret = "0123456789abcdef0123456789abcdef-test";

LinkOptions with_secret() {
  LinkOptions made = options();
  made.secret = kSecret;
  return made;
}

/// A program that connects to a rank by hand.
class Caller {
 public:
  Caller(Store& store, int rank) {
    const auto address =
        store.get("test/" + topology_of(0, 2).session + "/tcp/" + std::to_string(rank), kPatience);
    const tcp::NetworkAddress target = tcp::NetworkAddress::parse(*address);
    socket_ = ::socket(target.family(), SOCK_STREAM, 0);
    EXPECT_EQ(::connect(socket_, target.get(), target.size()), 0);
  }
  ~Caller() { ::close(socket_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  template <class Message>
  void send(const Message& message) {
    EXPECT_EQ(::send(socket_, &message, sizeof(message), MSG_NOSIGNAL),
              static_cast<ssize_t>(sizeof(message)));
  }
  /// The answer to a hello; nothing: it was disconnected.
  std::optional<tcp::Answer> answer() {
    tcp::Answer answer{};
    const ssize_t got = ::recv(socket_, &answer, sizeof(answer), MSG_WAITALL);
    if (got != static_cast<ssize_t>(sizeof(answer))) return std::nullopt;
    return answer;
  }
  /// Reads until the rank has disconnected it.
  void await_end() {
    char byte = 0;
    while (::recv(socket_, &byte, 1, 0) > 0) continue;
  }
  int socket() const { return socket_; }

 private:
  int socket_ = -1;
};

/// What ranks 0 and 1 do while `attack` runs against rank 0, which has not heard rank 1 yet: they
/// form and exchange a number.
template <class Attack>
void form_under(const LinkOptions& made, const Attack& attack) {
  InProcessStore store;
  const auto exchange = [&](int rank) { exchange_numbers(store, rank, made); };
  std::thread rank0([&] { exchange(0); });
  attack(store, [&] {
    std::thread rank1([&] { exchange(1); });
    rank1.join();
    rank0.join();
  });
}

TEST(HostLink, WhoDoesNotKnowTheSecretIsDisconnected) {
  form_under(with_secret(), [](Store& store, const auto& form) {
    for (const std::string secret : {"", "another secret"}) {
      for (const int lane : {-1, 0, HostLink::kMessageLane}) {
        const tcp::Identity stranger(secret, topology_of(0, 2).session, 1);
        Caller caller(store, 0);
        const tcp::Hello hello = stranger.hello(lane);
        caller.send(hello);
        const auto answer = caller.answer();
        // Links without on_messages take no messages from anyone.
        EXPECT_EQ(answer.has_value(), lane != HostLink::kMessageLane);
        if (!answer) continue;
        EXPECT_FALSE(stranger.is_right(*answer, hello, 0));
        caller.send(stranger.proof(hello, *answer));
        caller.await_end();
      }
    }
    form();
  });
}

/// It has said a hello for each lane of rank 1 first, and proves nothing.
TEST(HostLink, TheFirstThatConnectsOwnsNoLane) {
  form_under(with_secret(), [](Store& store, const auto& form) {
    Caller control(store, 0);
    Caller lane(store, 0);
    const tcp::Identity stranger("", topology_of(0, 2).session, 1);
    control.send(stranger.hello(-1));
    lane.send(stranger.hello(0));
    EXPECT_TRUE(control.answer());
    EXPECT_TRUE(lane.answer());
    form();
  });
}

TEST(HostLink, WhatWasSaidOnOneConnectionProvesNothingOnAnother) {
  form_under(with_secret(), [](Store& store, const auto& form) {
    const tcp::Identity rank(kSecret, topology_of(0, 2).session, 1);
    const tcp::Hello hello = rank.hello(0);
    Caller first(store, 0);
    first.send(hello);
    const auto answer = first.answer();
    ASSERT_TRUE(answer);
    EXPECT_TRUE(rank.is_right(*answer, hello, 0));
    // The same again, while the first one has not ended.
    Caller replayed(store, 0);
    replayed.send(hello);
    ASSERT_TRUE(replayed.answer());
    replayed.send(rank.proof(hello, *answer));
    replayed.await_end();
    // The listener's own code, that of another rank, another lane and another group.
    const auto refused = [&](const auto& proof_of) {
      Caller caller(store, 0);
      caller.send(hello);
      const auto told = caller.answer();
      ASSERT_TRUE(told);
      caller.send(proof_of(*told));
      caller.await_end();
    };
    refused([](const tcp::Answer& told) { return told.code; });
    refused([&](const tcp::Answer& told) {
      tcp::Hello other = hello;
      other.rank = 2;
      return rank.proof(other, told);
    });
    refused([&](const tcp::Answer& told) {
      tcp::Hello other = hello;
      other.lane = -1;
      return rank.proof(other, told);
    });
    refused([&](const tcp::Answer& told) {
      return tcp::Identity(kSecret, "another session", 1).proof(hello, told);
    });
    form();
  });
}

TEST(HostLink, ConnectionsThatAreSlowOrSilentHoldUpNobody) {
  form_under(with_secret(), [](Store& store, const auto& form) {
    std::vector<std::unique_ptr<Caller>> callers;
    const tcp::Identity stranger("", topology_of(0, 2).session, 1);
    for (int i = 0; i < 300; ++i) {
      callers.push_back(std::make_unique<Caller>(store, 0));
      if (i % 3 == 1) callers.back()->send('F');                // and no more
      if (i % 3 == 2) callers.back()->send(stranger.hello(0));  // and no proof
    }
    form();
  });
}

TEST(HostLink, RanksWithOtherSecretsDoNotMeet) {
  InProcessStore store;
  std::thread rank0([&] {  // sees that rank 1 has given up
    EXPECT_THROW(HostLink(store, topology_of(0, 2), {1}, 1, with_secret()), PeerFailure);
  });
  LinkOptions other = options();
  try {
    HostLink link(store, topology_of(1, 2), {0}, 1, other);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const MismatchError& error) {
    EXPECT_EQ(error.rank(), 0);
    EXPECT_THAT(error.what(), HasSubstr("did not prove to be rank 0"));
  }
  rank0.join();
}

TEST(HostLink, MessagesComeFromRanksAlone) {
  InProcessStore store;
  LinkOptions made = with_secret();
  std::atomic<int> from{-1};
  made.on_messages = [&](int rank, PrivateDescriptor) { from = rank; };
  std::thread rank1([&] { HostLink link(store, topology_of(1, 2), {0}, 1, with_secret()); });
  HostLink link(store, topology_of(0, 2), {1}, 1, made);
  rank1.join();
  const auto say = [&](const tcp::Identity& who) {
    Caller caller(store, 0);
    const tcp::Hello hello = who.hello(HostLink::kMessageLane);
    caller.send(hello);
    const auto answer = caller.answer();
    ASSERT_TRUE(answer);
    caller.send(who.proof(hello, *answer));
    caller.await_end();
  };
  say(tcp::Identity("", topology_of(0, 2).session, 1));
  EXPECT_EQ(from, -1);
  say(tcp::Identity(kSecret, topology_of(0, 2).session, 1));
  EXPECT_EQ(from, 1);
}

/// It has said where it listens, and is killed before it connects.
TEST(HostLink, APeerThatEndsBeforeItConnectsIsNamedSoon) {
  InProcessStore store;
  const std::string session = topology_of(0, 2).session;
  store.set("test/" + session + "/tcp/1", "127.0.0.1:1");
  const auto begin = Clock::now();
  try {
    HostLink link(store, topology_of(0, 2), {1}, 1, options());
    ADD_FAILURE() << "nothing was thrown";
  } catch (const PeerFailure& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 1"), HasSubstr("refuses connections")));
  }
  EXPECT_LT(Clock::now() - begin, kPatience);
}

/// It sends a message and leaves, so that connections to it are refused while its own is half made.
TEST(MessageRelay, ARankThatLeavesIsNotGoneWhileItsConnectionIsHalfMade) {
  InProcessStore store;
  const std::string session = topology_of(0, 2).session;
  std::atomic<int> moves{0};
  MessageRelay relay({{1},
                      tcp::Identity(kSecret, session, 0),
                      0,
                      [&] { ++moves; },
                      [](auto&, int) { ADD_FAILURE() << "the relay failed"; }});
  LinkOptions made = with_secret();
  made.on_messages = [&](int rank, PrivateDescriptor socket) {
    relay.accept(rank, std::move(socket));
  };
  std::thread rank1([&] { HostLink link(store, topology_of(1, 2), {0}, 1, with_secret()); });
  HostLink link(store, topology_of(0, 2), {1}, 1, made);
  rank1.join();
  relay.set_addresses(link, {tcp::NetworkAddress::parse("127.0.0.1:1")});
  const tcp::Identity of_rank1(kSecret, session, 1);
  auto caller = std::make_unique<Caller>(store, 0);
  const tcp::Hello hello = of_rank1.hello(HostLink::kMessageLane);
  caller->send(hello);
  const auto answer = caller->answer();
  ASSERT_TRUE(answer);
  EXPECT_TRUE(link.is_message_connection_pending(1));
  relay.open(0);  // as a receive does; refused
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_FALSE(relay.is_gone(0));
  caller->send(of_rank1.proof(hello, *answer));
  caller->send('m');
  caller.reset();
  const auto until = HostLink::Clock::now() + kPatience;
  while (!relay.is_gone(0) && HostLink::Clock::now() < until) {
    std::this_thread::sleep_for(milliseconds(1));
  }
  EXPECT_TRUE(relay.is_gone(0));
  ASSERT_NE(relay.from(0), nullptr);
  EXPECT_EQ(relay.from(0)->readable(), 1U);
  EXPECT_FALSE(link.is_message_connection_pending(1));
  EXPECT_GT(moves, 0);
  relay.stop();
}

/// In a job without a secret.
TEST(HostLink, AnotherUserOfTheHostIsDisconnected) {
  if (::geteuid() != 0) GTEST_SKIP() << "becomes another user";
  form_under(options(), [](Store& store, const auto& form) {
    const std::string address =
        *store.get("test/" + topology_of(0, 2).session + "/tcp/0", kPatience);
    const pid_t child = ::fork();
    if (child == 0) {
      InProcessStore own;
      own.set("test/" + topology_of(0, 2).session + "/tcp/0", address);
      if (::setuid(65534) != 0) ::_exit(2);
      const Caller silent(own, 0);  // nobody looks for its user, which takes time
      Caller caller(own, 0);
      const tcp::Identity stranger("", topology_of(0, 2).session, 1);
      const tcp::Hello hello = stranger.hello(0);
      ::send(caller.socket(), &hello, sizeof(hello), MSG_NOSIGNAL);
      if (caller.answer()) ::_exit(1);
      char byte = 0;
      const bool is_open = ::recv(silent.socket(), &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN;
      ::_exit(is_open ? 0 : 3);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    EXPECT_EQ(status, 0);
    form();
  });
}

TEST(PeerUser, IsFoundForBothFamiliesAndMappedAddresses) {
  for (const char* name : {"127.0.0.1:0", "[::1]:0"}) {
    const tcp::NetworkAddress wanted = tcp::NetworkAddress::parse(name);
    const int listener = ::socket(wanted.family(), SOCK_STREAM, 0);
    if (::bind(listener, wanted.get(), wanted.size()) != 0) {
      ::close(listener);
      continue;  // this host has no IPv6
    }
    ASSERT_EQ(::listen(listener, 4), 0);
    sockaddr_storage bound{};
    socklen_t size = sizeof(bound);
    ::getsockname(listener, reinterpret_cast<sockaddr*>(&bound), &size);
    const auto check = [&](int client, const sockaddr* address, socklen_t bytes) {
      ASSERT_EQ(::connect(client, address, bytes), 0);
      EXPECT_EQ(tcp::user_of_peer(client), tcp::PeerUser::kUnknown);  // nobody has accepted it
      const int accepted = ::accept(listener, nullptr, nullptr);
      EXPECT_EQ(tcp::user_of_peer(client), tcp::PeerUser::kSame);
      EXPECT_EQ(tcp::user_of_peer(accepted), tcp::PeerUser::kSame);
      ::close(client);
      EXPECT_EQ(tcp::user_of_peer(accepted), tcp::PeerUser::kUnknown);
      ::close(accepted);
    };
    check(::socket(wanted.family(), SOCK_STREAM, 0), reinterpret_cast<sockaddr*>(&bound), size);
    if (wanted.family() == AF_INET) {
      sockaddr_in6 mapped{};
      mapped.sin6_family = AF_INET6;
      mapped.sin6_port = reinterpret_cast<const sockaddr_in&>(bound).sin_port;
      ::inet_pton(AF_INET6, "::ffff:127.0.0.1", &mapped.sin6_addr);
      const int client = ::socket(AF_INET6, SOCK_STREAM, 0);
      if (client >= 0) check(client, reinterpret_cast<sockaddr*>(&mapped), sizeof(mapped));
    }
    ::close(listener);
  }
}

TEST(HostLink, ARankThatDoesNotConnectIsNamed) {
  LinkOptions mine = options();
  mine.timeout = milliseconds(300);
  for (const int rank : {0, 1}) {
    InProcessStore store;
    try {
      HostLink link(store, topology_of(rank, 2), {1 - rank}, 1, mine);
      ADD_FAILURE() << "nothing was thrown";
    } catch (const TimeoutError& error) {
      EXPECT_EQ(error.rank(), 1 - rank);
      EXPECT_THAT(error.what(), HasSubstr("did not connect"));
    }
  }
}

TEST(HostLink, WhatIsThrownWhileRanksWaitEndsTheWait) {
  InProcessStore store;
  LinkOptions mine = options();
  mine.while_waiting = [] { throw std::runtime_error("interrupted"); };
  EXPECT_THROW(HostLink(store, topology_of(0, 2), {1}, 1, mine), std::runtime_error);
}

TEST(NetworkAddress, IsReadAsItWasWritten) {
  for (const char* text : {"10.0.0.1:29500", "[::1]:1", "[fe80::1%2]:65535"}) {
    EXPECT_EQ(tcp::NetworkAddress::parse(text).text(), text);
  }
  for (const char* text : {"", "10.0.0.1", "10.0.0:1", "name:1", "10.0.0.1:99999", "::1:5"}) {
    EXPECT_THROW(tcp::NetworkAddress::parse(text), InvalidArgument) << text;
  }
}

TEST(NetworkAddress, IsTheOneOfTheInterfaceOrNetworkThatWasAskedFor) {
  EXPECT_EQ(tcp::address_of_this_host("lo").host(), "127.0.0.1");
  EXPECT_EQ(tcp::address_of_this_host("nosuch0,127.0.0.0/8").host(), "127.0.0.1");
  EXPECT_GT(tcp::address_of_this_host("").size(), 0U);
  try {
    tcp::address_of_this_host("nosuch0,203.0.113.0/24");
    FAIL() << "nothing was thrown";
  } catch (const InvalidArgument& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("nosuch0"), HasSubstr("lo (127.0.0.1)")));
  }
}

}  // namespace
}  // namespace farandole::comm::hosts
