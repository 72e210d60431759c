// SPDX-License-Identifier: Apache-2.0
#include "profile/clock_client.h"

#include <poll.h>

#include <algorithm>
#include <exception>
#include <string>

#include "comm/tcp/network_address.h"
#include "profile/clock_messages.h"

namespace farandole::profiler {
namespace {

constexpr int kQuestions = 16;
constexpr int kLostAnswers = 3;  ///< in a row: it does not answer
constexpr int kPatienceMs = 20;

}  // namespace

std::optional<ClockOffset> ClockClient::measure() {
  if (!socket_.valid() && !connect()) return std::nullopt;
  std::optional<ClockOffset> best;
  int lost = 0;
  for (int i = 0; i < kQuestions && lost < kLostAnswers; ++i) {
    const auto offset = ask();
    lost = offset ? 0 : lost + 1;
    if (offset && (!best || offset->error_ns < best->error_ns)) best = offset;
  }
  if (!best) socket_.reset();  // it may have begun anew, elsewhere
  return best;
}

bool ClockClient::connect() {
  try {
    const auto told = store_.try_get(kClockKey);
    if (!told) return false;
    const size_t space = told->find(' ');
    session_ = std::stoull(told->substr(0, space));
    const auto address = comm::tcp::NetworkAddress::parse(told->substr(space + 1));
    comm::PrivateDescriptor made = clock_socket(address.family());
    if (::connect(made.get(), address.get(), address.size()) != 0) return false;
    socket_ = std::move(made);
    return true;
  } catch (const std::exception&) {  // the store is gone, or there are too many files
    return false;
  }
}

std::optional<ClockOffset> ClockClient::ask() {
  if (!socket_.is_intact()) return std::nullopt;  // the program has closed it
  ClockMessage message;
  message.session = session_;
  message.asked_ns = clock_.now();
  const int64_t asked_ns = message.asked_ns;
  if (::send(socket_.get(), &message, sizeof(message), 0) < 0) return std::nullopt;
  pollfd answer{socket_.get(), POLLIN, 0};
  while (::poll(&answer, 1, kPatienceMs) > 0) {
    if (::recv(socket_.get(), &message, sizeof(message), 0) != sizeof(message)) return std::nullopt;
    const int64_t now = clock_.now();
    if (message.asked_ns != asked_ns) continue;  // the late answer to another question
    const int64_t there = message.received_ns / 2 + message.answered_ns / 2;
    const int64_t here = asked_ns / 2 + now / 2;
    const int64_t travel = (now - asked_ns) - (message.answered_ns - message.received_ns);
    return ClockOffset{there - here, std::max<int64_t>(travel / 2, 1)};
  }
  return std::nullopt;
}

}  // namespace farandole::profiler
