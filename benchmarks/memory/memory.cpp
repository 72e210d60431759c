// SPDX-License-Identifier: Apache-2.0
// One rank of the memory benchmark. run.py starts it once for each rank:
//   farandole_bench_memory <socket of run.py> <folder for the store> <rank> <world size>
// It does what each line asks (make, mix, look) and answers with its memory, one line of JSON.
#include <algorithm>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "farandole/comm/backends.h"
#include "memory/usage.h"
#include "support/directory_store.h"
#include "support/driver.h"

namespace {

using farandole::comm::Communicator;
using farandole::comm::DataType;
using farandole::comm::ReduceOp;

constexpr size_t kMostBytes = 1024 * 1024;
constexpr size_t kBlockBytes = 4096;
constexpr size_t kMessageBytes = 64 * 1024;

/// What a rank calls, on ordinary memory that is touched before anything is looked at.
class Mix {
 public:
  explicit Mix(int world_size)
      : input_(std::max(kMostBytes, kBlockBytes * static_cast<size_t>(world_size))),
        output_(input_.size()) {}

  /// Every operation once: small, in one slot, in several chunks; a message to each neighbour.
  void run(Communicator& group) {
    const DataType bytes = DataType::kUInt8;
    for (const size_t size : {size_t{8}, size_t{1024}, size_t{64 * 1024}, kMostBytes}) {
      group.all_reduce(input_.data(), output_.data(), size, bytes, ReduceOp::kMax);
      group.broadcast(output_.data(), size, bytes, 0);
      group.reduce(input_.data(), output_.data(), size, bytes, ReduceOp::kMax, 0);
    }
    group.reduce_scatter(input_.data(), output_.data(), kBlockBytes, bytes, ReduceOp::kMax);
    group.all_gather(input_.data(), output_.data(), kBlockBytes, bytes);
    group.gather(input_.data(), output_.data(), kBlockBytes, bytes, 0);
    group.scatter(input_.data(), output_.data(), kBlockBytes, bytes, 0);
    group.all_to_all(input_.data(), output_.data(), kBlockBytes, bytes);
    pass_round(group);
    group.barrier();
  }

 private:
  void pass_round(Communicator& group) {
    const int world = group.world_size();
    const int next = (group.rank() + 1) % world;
    const int previous = (group.rank() + world - 1) % world;
    const auto sent = group.send(input_.data(), kMessageBytes, next, 0);
    const auto received = group.receive(output_.data(), kMessageBytes, previous, 0);
    const std::chrono::milliseconds default_timeout{0};
    sent->wait(default_timeout);
    received->wait(default_timeout);
  }

  std::vector<std::byte> input_;
  std::vector<std::byte> output_;
};

void serve(const std::string& socket, const std::string& folder, int rank, int world_size) {
  farandole::benchmark::DirectoryStore store(folder, rank);
  farandole::comm::CommunicatorOptions options;
  options.name = "benchmark";
  options.rank = rank;
  options.world_size = world_size;
  Mix mix(world_size);
  std::unique_ptr<Communicator> group;
  farandole::benchmark::own_usage();  // so that what a look itself touches is there before
  farandole::benchmark::Driver driver(socket, rank);
  while (const auto question = driver.next_question()) {
    if (*question == "make") {
      group = farandole::comm::make_communicator("shm", store, options);
    } else if (*question == "mix") {
      mix.run(*group);
    } else if (*question != "look") {
      throw std::invalid_argument("unknown question: " + *question);
    }
    driver.answer(to_json(farandole::benchmark::own_usage()));
  }
}

}  // namespace

int main(int argc, char** argv) { return farandole::benchmark::run_program(argc, argv, serve); }
