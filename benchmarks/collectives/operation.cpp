// SPDX-License-Identifier: Apache-2.0
#include "collectives/operation.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

namespace farandole::benchmark {
namespace {

using comm::DataType;
using comm::ReduceOp;
using Clock = std::chrono::steady_clock;

constexpr int kRoot = 0;
constexpr std::chrono::milliseconds kDefaultTimeout{0};
constexpr DataType kType = DataType::kFloat32;

/// Element i of what rank 0 sends in a check; rank r sends r + 1 times as much. The period, a
/// prime, is no divisor of any block, so that a block in the wrong place shows.
float value(size_t i) { return static_cast<float>(i % 1021 + 1); }

int64_t nanoseconds(Clock::duration time) { return std::chrono::nanoseconds(time).count(); }

/// Elements of input and output; no output where the operation works in place.
struct Layout {
  size_t input;
  size_t output;
};

Layout layout_of(const std::string& name, size_t elements, size_t block, size_t pieces) {
  if (name == "barrier") return {0, 0};
  if (name == "reduce_scatter" || name == "scatter") return {elements, block};
  if (name == "all_gather" || name == "gather") return {block, elements};
  if (name == "all_to_all" || name == "all_to_all_v" || name == "send_recv") {
    return {elements, elements};
  }
  if (name == "send_stream") return {elements * pieces, elements * pieces};
  return {elements, 0};
}

/// What `rank` sends to each rank in all_to_all_v, and gets from it: one share or three to each
/// other rank in turn, what is left to itself.
std::vector<size_t> splits(size_t rank, size_t ranks, size_t elements) {
  std::vector<size_t> counts(ranks);
  size_t left = elements;
  for (size_t peer = 0; peer < ranks; ++peer) {
    if (peer != rank) counts[peer] = elements / (2 * ranks) * ((rank + peer) % 2 == 0 ? 1 : 3);
    left -= counts[peer];
  }
  counts[rank] = left;
  return counts;
}

bool only_root_gets(const std::string& name) { return name == "reduce" || name == "gather"; }

}  // namespace

Operation::Operation(comm::Communicator& communicator, const std::string& name, size_t bytes,
                     size_t pieces, bool symmetric)
    : communicator_(communicator),
      elements_(bytes / sizeof(float)),
      block_(elements_ / static_cast<size_t>(communicator.world_size())),
      pieces_(pieces) {
  const Layout layout = layout_of(name, elements_, block_, pieces_);
  input_elements_ = layout.input;
  output_elements_ = layout.output == 0 ? layout.input : layout.output;
  input_ = allocate(layout.input, symmetric);
  output_ = layout.output == 0 ? input_ : allocate(layout.output, symmetric);
  if (only_root_gets(name)) has_result_ = communicator.rank() == kRoot;
  if (name == "send_stream") has_result_ = communicator.rank() % 2 == 1;
  call_ = make_call(name);
  expected_ = make_expected(name);
}

float* Operation::allocate(size_t elements, bool symmetric) {
  if (symmetric) {
    shared_.push_back(communicator_.shared_memory()->allocate_symmetric(elements * sizeof(float)));
    return static_cast<float*>(shared_.back()->local());
  }
  ordinary_.emplace_back(elements);
  return ordinary_.back().data();
}

Operation::Call Operation::make_call(const std::string& name) {
  auto& group = communicator_;
  if (name == "all_reduce")
    return [&] { group.all_reduce(input_, output_, elements_, kType, ReduceOp::kSum); };
  if (name == "reduce_scatter")
    return [&] { group.reduce_scatter(input_, output_, block_, kType, ReduceOp::kSum); };
  if (name == "all_gather") return [&] { group.all_gather(input_, output_, block_, kType); };
  if (name == "broadcast") return [&] { group.broadcast(input_, elements_, kType, kRoot); };
  if (name == "reduce")
    return [&] { group.reduce(input_, output_, elements_, kType, ReduceOp::kSum, kRoot); };
  if (name == "gather") return [&] { group.gather(input_, output_, block_, kType, kRoot); };
  if (name == "scatter") return [&] { group.scatter(input_, output_, block_, kType, kRoot); };
  if (name == "all_to_all") return [&] { group.all_to_all(input_, output_, block_, kType); };
  if (name == "all_to_all_v") {
    const auto counts = splits(static_cast<size_t>(group.rank()),
                               static_cast<size_t>(group.world_size()), elements_);
    return
        [&, counts] { group.all_to_all_v(input_, counts.data(), output_, counts.data(), kType); };
  }
  if (name == "barrier") return [&] { group.barrier(); };
  if (name == "send_recv") return make_send_recv();
  if (name == "send_stream") return make_send_stream();
  throw std::invalid_argument("unknown operation: " + name);
}

/// There and back: even ranks send first.
Operation::Call Operation::make_send_recv() {
  const int peer = communicator_.rank() ^ 1;
  const size_t bytes = elements_ * sizeof(float);
  const auto send = [this, peer, bytes] {
    communicator_.send(input_, bytes, peer, 0)->wait(kDefaultTimeout);
  };
  const auto receive = [this, peer, bytes] {
    communicator_.receive(output_, bytes, peer, 0)->wait(kDefaultTimeout);
  };
  if (communicator_.rank() % 2 == 0) return [=] { send(), receive(); };
  return [=] { receive(), send(); };
}

/// `pieces_` messages at once from the even rank to the odd one, which then acknowledges them all.
Operation::Call Operation::make_send_stream() {
  const int peer = communicator_.rank() ^ 1;
  const bool sends = communicator_.rank() % 2 == 0;
  const size_t bytes = elements_ * sizeof(float);
  return [this, peer, sends, bytes] {
    std::vector<std::shared_ptr<comm::Transfer>> transfers;
    for (size_t i = 0; i < pieces_; ++i) {
      transfers.push_back(sends ? communicator_.send(input_ + i * elements_, bytes, peer, i)
                                : communicator_.receive(output_ + i * elements_, bytes, peer, i));
    }
    for (const auto& transfer : transfers) transfer->wait(kDefaultTimeout);
    const auto last = sends ? communicator_.receive(&acknowledgement_, sizeof(float), peer, pieces_)
                            : communicator_.send(&acknowledgement_, sizeof(float), peer, pieces_);
    last->wait(kDefaultTimeout);
  };
}

Operation::Expected Operation::make_expected(const std::string& name) const {
  const auto world = static_cast<size_t>(communicator_.world_size());
  const auto rank = static_cast<size_t>(communicator_.rank());
  const auto sum = static_cast<float>(world * (world + 1) / 2);
  const auto peer = static_cast<float>((rank ^ 1) + 1);
  const size_t block = block_;
  const size_t own = rank * block;
  const auto sender = [block](size_t i) { return static_cast<float>(i / block + 1); };
  if (name == "all_reduce" || name == "reduce") return [=](size_t i) { return sum * value(i); };
  if (name == "reduce_scatter") return [=](size_t i) { return sum * value(own + i); };
  if (name == "scatter") return [=](size_t i) { return value(own + i); };
  if (name == "broadcast") return [](size_t i) { return value(i); };
  if (name == "all_to_all") return [=](size_t i) { return sender(i) * value(own + i % block); };
  if (name == "all_to_all_v") return make_expected_of_uneven(world, rank);
  if (name == "send_recv" || name == "send_stream")
    return [=](size_t i) { return peer * value(i); };
  return [=](size_t i) { return sender(i) * value(i % block); };  // all_gather, gather
}

Operation::Expected Operation::make_expected_of_uneven(size_t world, size_t rank) const {
  const size_t elements = elements_;
  return [world, rank, elements](size_t i) {
    const auto from_each = splits(rank, world, elements);
    size_t sender = 0;
    while (i >= from_each[sender]) i -= from_each[sender++];
    const auto of_sender = splits(sender, world, elements);
    for (size_t peer = 0; peer < rank; ++peer) i += of_sender[peer];
    return static_cast<float>(sender + 1) * value(i);
  };
}

Operation::Check Operation::check() {
  const auto factor = static_cast<float>(communicator_.rank() + 1);
  std::fill_n(output_, output_elements_, -1.0F);
  for (size_t i = 0; i < input_elements_; ++i) input_[i] = factor * value(i);
  std::this_thread::sleep_for(std::chrono::milliseconds(communicator_.rank()));
  Check check{0, nanoseconds(Clock::now().time_since_epoch()), 0};
  call_();
  check.left_ns = nanoseconds(Clock::now().time_since_epoch());
  for (size_t i = 0; has_result_ && i < output_elements_; ++i) {
    check.wrong += output_[i] != expected_(i);
  }
  return check;
}

std::vector<int64_t> Operation::measure(int warmup, int iterations) {
  std::fill_n(input_, input_elements_, 0.0F);
  std::fill_n(output_, output_elements_, 0.0F);
  for (int i = 0; i < warmup; ++i) call_();
  std::vector<int64_t> periods(static_cast<size_t>(iterations));
  communicator_.barrier();
  auto previous = Clock::now();
  for (int64_t& period : periods) {
    call_();
    const auto now = Clock::now();
    period = nanoseconds(now - previous);
    previous = now;
  }
  return periods;
}

}  // namespace farandole::benchmark
