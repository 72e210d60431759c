// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>
#include <poll.h>

#include <atomic>
#include <memory>
#include <thread>

#include "profile/clock_client.h"
#include "profile/clock_messages.h"
#include "profile/clock_server.h"

namespace farandole::profiler {
namespace {

/// Answers in a thread of its own.
class Answering {
 public:
  explicit Answering(const ClockServer& server)
      : thread_([this, &server] {
          pollfd asked{server.descriptor(), POLLIN, 0};
          while (!ends_.load()) {
            if (::poll(&asked, 1, 10) > 0) server.answer();
          }
        }) {}
  ~Answering() {
    ends_.store(true);
    thread_.join();
  }

 private:
  std::atomic<bool> ends_{false};
  std::thread thread_;
};

TEST(ProfileClock, IsComparedWithinTheErrorThatIsTold) {
  comm::InProcessStore store;
  constexpr int64_t kLongAgo = 1'000'000'000'000'000'000;  // its host has the wrong time
  const TraceClock of_rank_0(kLongAgo);
  const TraceClock own;
  // Both carry on the same steady clock, so this is by how much they differ.
  const int64_t truth = of_rank_0.at(0) - own.at(0);
  const ClockServer server(store, "127.0.0.1:0", of_rank_0);
  const Answering answering(server);
  ClockClient client(store, own);
  for (int i = 0; i < 3; ++i) {
    const auto offset = client.measure();
    ASSERT_TRUE(offset);
    EXPECT_LE(std::abs(offset->offset_ns - truth), offset->error_ns);
  }
}

TEST(ProfileClock, IsUnknownUntilRank0Answers) {
  comm::InProcessStore store;
  const TraceClock clock;
  ClockClient client(store, clock);
  EXPECT_FALSE(client.measure()) << "it has told no address";
  auto server = std::make_unique<ClockServer>(store, "[::1]:0", clock);
  EXPECT_FALSE(client.measure()) << "it does not look at its socket";
  server = std::make_unique<ClockServer>(store, "127.0.0.1:0", clock);
  {
    const Answering answering(*server);
    EXPECT_TRUE(client.measure()) << "it has begun anew, elsewhere";
  }
  server.reset();
  EXPECT_FALSE(client.measure()) << "it has ended";
}

TEST(ProfileClock, AnswersNobodyWhoDoesNotKnowTheSession) {
  comm::InProcessStore store;
  const TraceClock clock;
  const ClockServer server(store, "127.0.0.1:0", clock);
  const Answering answering(server);
  store.set(kClockKey, "1" + store.get(kClockKey, std::chrono::seconds(1))->substr(1));
  store.set(kClockKey,
            "99" + store.get(kClockKey, std::chrono::seconds(1))
                       ->substr(store.get(kClockKey, std::chrono::seconds(1))->find(' ')));
  EXPECT_FALSE(ClockClient(store, clock).measure());
}

}  // namespace
}  // namespace farandole::profiler
