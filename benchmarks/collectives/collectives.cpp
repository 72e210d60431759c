// SPDX-License-Identifier: Apache-2.0
// One rank of the C++ lanes. run.py starts it once for each rank:
//   farandole_bench_collectives <socket of run.py> <folder for the store> <rank> <world size>
// With FARANDOLE_BACKEND=mpi, under mpirun, it goes through MpiCommunicator.
// Protocol, one line each way (worker.py speaks it too): on
//   <lane> <operation> <bytes> <pieces> <warm-up> <iterations>
// it verifies, warms up, measures and verifies again, and answers with one line of JSON.
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "collectives/operation.h"
#include "farandole/comm/backends.h"
#include "support/directory_store.h"
#include "support/driver.h"

namespace {

using farandole::benchmark::Driver;
using farandole::benchmark::Operation;
using farandole::comm::Communicator;

std::string list_of(const std::vector<int64_t>& values) {
  std::ostringstream text;
  for (size_t i = 0; i < values.size(); ++i) text << (i == 0 ? "[" : ", ") << values[i];
  return text.str() + "]";
}

std::string to_json(const Operation::Check& before, const std::vector<int64_t>& periods,
                    const Operation::Check& after) {
  return "{\"wrong\": " + std::to_string(before.wrong + after.wrong) +
         ", \"entered_ns\": " + list_of({before.entered_ns, after.entered_ns}) +
         ", \"left_ns\": " + list_of({before.left_ns, after.left_ns}) +
         ", \"periods_ns\": " + list_of(periods) + "}";
}

void serve(Driver& driver, Communicator& communicator) {
  std::unique_ptr<Operation> operations[2];  // in ordinary memory, in symmetric memory
  std::string made;
  while (const auto question = driver.next_question()) {
    std::string lane;
    std::string name;
    size_t bytes = 0;
    size_t pieces = 0;
    int warmup = 0;
    int iterations = 0;
    std::istringstream(*question) >> lane >> name >> bytes >> pieces >> warmup >> iterations;
    const std::string wanted = name + " " + std::to_string(bytes);
    if (wanted != made) {
      for (auto& operation : operations) operation.reset();
      made = wanted;
    }
    const bool symmetric = lane == "farandole_symmetric";
    auto& operation = operations[symmetric];
    if (!operation) {
      operation = std::make_unique<Operation>(communicator, name, bytes, pieces, symmetric);
    }
    const auto before = operation->check();
    const auto periods = operation->measure(warmup, iterations);
    driver.answer(to_json(before, periods, operation->check()));
  }
}

void serve_rank(const std::string& socket, const std::string& folder, int rank, int world_size) {
  farandole::comm::CommunicatorOptions options;
  options.name = "benchmark";
  options.rank = rank;
  options.world_size = world_size;
  farandole::benchmark::DirectoryStore store(folder, rank);
  const bool through_mpi = options.config.backend == farandole::BackendChoice::kMpi;
  const auto communicator =
      farandole::comm::make_communicator(through_mpi ? "mpi" : "shm", store, options);
  Driver driver(socket, rank);
  serve(driver, *communicator);
}

}  // namespace

int main(int argc, char** argv) {
  return farandole::benchmark::run_program(argc, argv, serve_rank);
}
