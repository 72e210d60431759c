// SPDX-License-Identifier: Apache-2.0
// One rank of the benchmark of buckets. run.py starts it once for each rank:
//   farandole_bench_buckets <socket of run.py> <folder for the store> <rank> <world size>
// On each line,
//   round <bytes> <bytes of a bucket> <iterations> | idle <buckets> <iterations>
// it measures, and answers with one line of JSON.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "farandole/comm/backends.h"
#include "support/directory_store.h"
#include "support/driver.h"

namespace {

using farandole::comm::BucketRange;
using farandole::comm::BucketReduction;
using farandole::comm::Communicator;
using farandole::comm::DataType;
using farandole::comm::ReduceOp;
using Clock = std::chrono::steady_clock;

constexpr size_t kLine = 64;

template <class Body>
double nanoseconds(const Body& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double, std::nano>(Clock::now() - begin).count();
}

std::string list_of(const std::vector<double>& values) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) text << (i == 0 ? "" : ", ") << values[i];
  return "[" + text.str() + "]";
}

/// A buffer of zeros in buckets of one size, the last one shorter.
class Buffer {
 public:
  Buffer(Communicator& group, size_t bytes, size_t bucket_bytes)
      : group_(group), bytes_(bytes), memory_(group.shared_memory()->allocate_symmetric(bytes)) {
    const size_t unit = static_cast<size_t>(group.world_size()) * kLine;
    for (size_t offset = 0; offset < bytes; offset += bucket_bytes) {
      const size_t size = std::min(bucket_bytes, bytes - offset) / unit * unit;
      buckets_.push_back({offset, size / sizeof(float), DataType::kFloat32});
    }
    reduction_ = group.shared_memory()->make_bucket_reduction(memory_, buckets_, 0);
  }

  size_t buckets() const { return buckets_.size(); }
  BucketReduction& reduction() { return *reduction_; }

  void publish_and_finish() {
    reduction_->begin(1);
    for (size_t bucket = 0; bucket < buckets_.size(); ++bucket) reduction_->publish(bucket);
    reduction_->finish(nullptr, true, {});
  }
  void all_reduce() {
    group_.all_reduce(data(), data(), bytes_ / sizeof(float), DataType::kFloat32, ReduceOp::kAvg);
  }

  /// Elements that are wrong after a round.
  size_t wrong() {
    for (size_t i = 0; i < bytes_ / sizeof(float); ++i) data()[i] = value(i, group_.rank());
    group_.barrier();
    publish_and_finish();
    const float last = static_cast<float>(group_.world_size() - 1);
    size_t wrong = 0;
    for (size_t i = 0; i < bytes_ / sizeof(float); ++i) {
      wrong += data()[i] != value(i, 0) + last / 2 ? 1 : 0;
    }
    group_.barrier();
    return wrong;
  }

 private:
  static float value(size_t i, int rank) {
    return static_cast<float>(i % 1021) + static_cast<float>(rank);
  }
  float* data() { return static_cast<float*>(memory_->local()); }

  Communicator& group_;
  size_t bytes_;
  std::shared_ptr<farandole::comm::SymmetricMemory> memory_;
  std::vector<BucketRange> buckets_;
  std::shared_ptr<BucketReduction> reduction_;
};

/// Three ways by turns, each from a barrier to its end: a round, an all_reduce, and a copy, by each
/// rank, of as many bytes as it reads and writes in the others.
std::string measure_rounds(Communicator& group, size_t bytes, size_t bucket_bytes, int iterations) {
  Buffer buffer(group, bytes, bucket_bytes);
  const size_t wrong = buffer.wrong();
  std::vector<char> from(bytes);
  std::vector<char> to(bytes);
  std::vector<double> rounds;
  std::vector<double> all_reduces;
  std::vector<double> copies;
  for (int i = 0; i < iterations; ++i) {
    group.barrier();
    rounds.push_back(nanoseconds([&] { buffer.publish_and_finish(); }));
    group.barrier();
    all_reduces.push_back(nanoseconds([&] { buffer.all_reduce(); }));
    group.barrier();
    copies.push_back(nanoseconds([&] {
      std::memcpy(to.data(), from.data(), bytes);
      group.barrier();
    }));
  }
  return "{\"wrong\": " + std::to_string(wrong + buffer.wrong()) +
         ", \"round_ns\": " + list_of(rounds) + ", \"all_reduce_ns\": " + list_of(all_reduces) +
         ", \"copy_ns\": " + list_of(copies) + "}";
}

/// What publish() and progress() cost a bucket that no peer has published yet.
std::string measure_idle(Communicator& group, size_t buckets, int iterations) {
  const size_t bucket_bytes = static_cast<size_t>(group.world_size()) * kLine;
  Buffer buffer(group, buckets * bucket_bytes, bucket_bytes);
  std::vector<double> times;
  for (int i = 0; i < iterations; ++i) {
    buffer.reduction().begin(1);
    group.barrier();
    const auto publish = [&] {
      for (size_t bucket = 0; bucket < buckets; ++bucket) {
        buffer.reduction().publish(bucket);
        buffer.reduction().progress();
      }
    };
    if (group.rank() == 0) times.push_back(nanoseconds(publish) / static_cast<double>(buckets));
    group.barrier();
    if (group.rank() != 0) publish();
    buffer.reduction().finish(nullptr, true, {});
  }
  return "{\"idle_ns\": " + list_of(times) + "}";
}

std::string answer(Communicator& group, const std::string& question) {
  std::istringstream words(question);
  std::string what;
  size_t size = 0;
  size_t bucket_bytes = 0;
  int iterations = 0;
  words >> what >> size;
  if (what == "round") words >> bucket_bytes;
  words >> iterations;
  if (what == "round") return measure_rounds(group, size, bucket_bytes, iterations);
  if (what == "idle") return measure_idle(group, size, iterations);
  throw std::invalid_argument("unknown question: " + question);
}

void serve(const std::string& socket, const std::string& folder, int rank, int world_size) {
  farandole::benchmark::DirectoryStore store(folder, rank);
  farandole::comm::CommunicatorOptions options;
  options.name = "benchmark";
  options.rank = rank;
  options.world_size = world_size;
  const auto group = farandole::comm::make_communicator("shm", store, options);
  farandole::benchmark::Driver driver(socket, rank);
  while (const auto question = driver.next_question()) driver.answer(answer(*group, *question));
}

}  // namespace

int main(int argc, char** argv) { return farandole::benchmark::run_program(argc, argv, serve); }
