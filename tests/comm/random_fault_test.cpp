// SPDX-License-Identifier: Apache-2.0
// Ranks that die, stop, disagree, dawdle or throw at random moments of random collectives. Every
// failure prints the seed of its round; FARANDOLE_FAULT_SEED repeats from there,
// FARANDOLE_FAULT_ROUNDS sets how many.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/error.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::CollectiveOptions;
using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;

enum class Fault { kKill, kStop, kMismatch, kSlow, kException };

/// One round, drawn from its seed alone.
struct Round {
  explicit Round(unsigned number) : seed(number), random(number) {
    world_size = draw(2, 4);
    operations = draw(3, 12);
    victim = draw(0, world_size - 1);
    at = draw(0, operations - 1);
    // Stopped ranks cost a whole timeout, so they are drawn less often.
    fault = draw(0, 7) == 0
                ? Fault::kStop
                : std::vector<Fault>{Fault::kKill, Fault::kKill, Fault::kMismatch, Fault::kSlow,
                                     Fault::kException}[static_cast<size_t>(draw(0, 4))];
    symmetric = draw(0, 1) == 1;
  }
  int draw(int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); }

  unsigned seed;
  std::mt19937 random;
  int world_size;
  int operations;
  int victim;
  int at;
  Fault fault;
  bool symmetric;  ///< whether tensors lie in symmetric memory
};

constexpr size_t kMost = 200000;  ///< elements of the largest tensor

/// A round of buckets of ones; throws as run_operation().
void run_buckets(comm::BucketReduction& reduction, comm::SymmetricMemory& memory, size_t buckets,
                 const CollectiveOptions& options) {
  auto* data = static_cast<float*>(memory.local());
  std::fill_n(data, memory.bytes() / sizeof(float), 1.0F);
  reduction.begin(1);
  for (size_t bucket = 0; bucket < buckets; ++bucket) reduction.publish(bucket);
  if (!reduction.finish(nullptr, true, options)) throw std::logic_error("a round was given up");
  for (size_t i = 0; i < memory.bytes() / sizeof(float); ++i) {
    if (data[i] != 1.0F) throw std::logic_error("an average is wrong");
  }
}

/// One after the other, each of whole shards.
std::vector<comm::BucketRange> some_buckets(const Communicator& group) {
  const size_t unit = static_cast<size_t>(group.world_size()) * 16;
  std::vector<comm::BucketRange> buckets;
  size_t offset = 0;
  for (const size_t units : {1, 700, 40, 9}) {
    buckets.push_back({offset, units * unit, DataType::kFloat32});
    offset += units * unit * sizeof(float);
  }
  return buckets;
}

/// One collective on ones; every rank draws the same kind and size. Throws what it throws, or
/// std::logic_error where the result is wrong.
void run_operation(Communicator& group, Round& round, float* data, comm::BucketReduction& reduction,
                   comm::SymmetricMemory& bucket_memory, bool disagree) {
  const int kind = round.draw(0, 5);
  const auto count = static_cast<size_t>(std::vector<int>{
                         1, 50, 3000, 70000, 200000}[static_cast<size_t>(round.draw(0, 4))]) /
                     static_cast<size_t>(group.world_size());
  const auto world = static_cast<size_t>(group.world_size());
  CollectiveOptions options;
  if (round.fault == Fault::kStop) options.timeout = milliseconds(1500);
  std::fill_n(data, std::max<size_t>(count, 1) * world, 1.0F);
  std::vector<float> other(std::max<size_t>(count, 1) * world, 1.0F);
  if (disagree) return group.broadcast(data, count + 3, DataType::kFloat32, 1, options);
  float expected = 1.0F;
  switch (kind) {
    case 0:
      group.all_reduce(data, data, count, DataType::kFloat32, ReduceOp::kSum, options);
      expected = static_cast<float>(world);
      break;
    case 1:
      group.reduce_scatter(data, other.data(), count, DataType::kFloat32, ReduceOp::kSum, options);
      if (count != 0 && other[count - 1] != static_cast<float>(world)) {
        throw std::logic_error("reduce_scatter is wrong");
      }
      break;
    case 2:
      group.all_gather(other.data(), data, count, DataType::kFloat32, options);
      break;
    case 3:
      group.broadcast(data, count, DataType::kFloat32, 0, options);
      break;
    case 4:
      return run_buckets(reduction, bucket_memory, some_buckets(group).size(), options);
    default:
      group.all_to_all(data, other.data(), count, DataType::kFloat32, options);
  }
  if (count != 0 && (data[0] != expected || data[count - 1] != expected)) {
    throw std::logic_error("collective " + std::to_string(kind) + " is wrong");
  }
}

/// What the victim does at its moment. Returns for faults that go on.
void misbehave(Fault fault) {
  switch (fault) {
    case Fault::kKill:
      ::raise(SIGKILL);
      break;
    case Fault::kStop: {
      const pid_t stopped = ::getpid();
      if (::fork() == 0) {  // ends the stopped rank once the others are done with it
        std::this_thread::sleep_for(milliseconds(3500));
        if (::getppid() == stopped) ::kill(stopped, SIGKILL);
        ::_exit(0);
      }
      ::raise(SIGSTOP);
      break;
    }
    case Fault::kSlow:
      std::this_thread::sleep_for(milliseconds(80));
      break;
    case Fault::kException:
      throw std::domain_error("the user's code failed");
    case Fault::kMismatch:
      break;
  }
}

/// Runs one rank through a round. Returns what went wrong, "" if all went as it must.
std::string run_rank(Communicator& group, Round round) {
  std::vector<float> ordinary(kMost * 2);
  auto memory = group.shared_memory()->allocate_symmetric(kMost * 2 * sizeof(float));
  const auto buckets = some_buckets(group);
  const size_t bucket_bytes = buckets.back().offset_bytes + buckets.back().count * sizeof(float);
  const auto bucket_memory = group.shared_memory()->allocate_symmetric(bucket_bytes);
  const auto reduction = group.shared_memory()->make_bucket_reduction(bucket_memory, buckets, 0);
  float* data = round.symmetric ? static_cast<float*>(memory->local()) : ordinary.data();
  const bool is_victim = group.rank() == round.victim;
  const std::string name = "rank " + std::to_string(round.victim);
  const bool fatal = round.fault != Fault::kMismatch && round.fault != Fault::kSlow;
  bool mismatch_seen = false;
  for (int i = 0; i < round.operations; ++i) {
    try {
      if (is_victim && i == round.at) misbehave(round.fault);
      const bool disagree = is_victim && i == round.at && round.fault == Fault::kMismatch;
      run_operation(group, round, data, *reduction, *bucket_memory, disagree);
    } catch (const MismatchError& error) {
      if (round.fault != Fault::kMismatch || i != round.at) return error.what();
      mismatch_seen = true;
    } catch (const CommError& error) {
      const std::string text = error.what();
      if (!fatal || i < round.at) return "unexpected: " + text;
      return text.find(name) == std::string::npos ? name + " is not named: " + text : "";
    } catch (const std::domain_error&) {
      return "";  // the victim's own exception: its communicator goes now
    }
  }
  if (fatal) return "nobody told this rank that " + name + " was gone";
  if (round.fault == Fault::kMismatch && !mismatch_seen) return "the mismatch went unseen";
  return "";
}

unsigned from_environment(const char* name, unsigned fallback) {
  const char* text = std::getenv(name);
  return text == nullptr ? fallback : static_cast<unsigned>(std::strtoul(text, nullptr, 10));
}

TEST(RandomFault, IsNamedOnEverySurvivorAndNothingHangs) {
  const unsigned rounds = from_environment("FARANDOLE_FAULT_ROUNDS", thin_matrix() ? 20 : 80);
  const unsigned first = from_environment("FARANDOLE_FAULT_SEED", 1);
  for (unsigned seed = first; seed < first + rounds && !HasFailure(); ++seed) {
    SCOPED_TRACE("FARANDOLE_FAULT_SEED=" + std::to_string(seed));
    const Round round(seed);
    const bool dies = round.fault == Fault::kKill || round.fault == Fault::kStop;
    run_process_ranks(
        round.world_size,
        [&](Communicator& group) {
          const std::string problem = run_rank(group, round);
          if (!problem.empty()) {
            throw std::runtime_error("seed " + std::to_string(round.seed) + ": " + problem);
          }
        },
        {Config(), dies ? std::vector<int>{round.victim} : std::vector<int>{}});
  }
}

}  // namespace
}  // namespace farandole::test
