// SPDX-License-Identifier: Apache-2.0
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "farandole/data/distributed_bucket_batch_sampler.h"
#include "farandole/data/distributed_sampler.h"
#include "farandole/data/distributed_weighted_random_sampler.h"

// Prints what the samplers of C++ return, for tests/python/test_samplers.py. Each line of the input
// is a case, of which an output line has the batches of one pass:
//
//   <sampler> <name>=<number>... [/ <weight or length of each sample>...]
//
// The pass begins after `consumed` samples (batches) of a pass of `replicas_before` ranks.

namespace {

using namespace farandole;

struct Case {
  std::string sampler;
  std::map<std::string, int64_t> numbers;
  std::vector<double> values;

  explicit Case(const std::string& line) {
    std::istringstream in(line);
    in >> sampler;
    std::string word;
    while (in >> word && word != "/") {
      const size_t equals = word.find('=');
      numbers[word.substr(0, equals)] = std::stoll(word.substr(equals + 1));
    }
    while (in >> word) values.push_back(std::stod(word));
  }
  int64_t operator[](const std::string& name) const { return numbers.at(name); }
};

void take(const Case& of, SamplerOptions& options, const std::string& ranks) {
  options.num_replicas = of["num_replicas" + ranks];
  options.rank = ranks.empty() ? of["rank"] : 0;
  options.seed = of["seed"];
  options.drop_last = of["drop_last"] != 0;
  options.even_divisible = of["even_divisible"] != 0;
}

std::unique_ptr<EpochSampler> made(const Case& of, const std::string& ranks) {
  BucketOptions options;
  take(of, options, ranks);
  options.shuffle = of["shuffle"] != 0;
  if (of.sampler == "DistributedSampler") {
    return std::make_unique<DistributedSampler>(static_cast<size_t>(of["size"]), options);
  }
  if (of.sampler == "DistributedWeightedRandomSampler") {
    return std::make_unique<DistributedWeightedRandomSampler>(of.values, of["num_samples"],
                                                              of["replacement"] != 0, options);
  }
  if (of.sampler == "DistributedBucketBatchSampler") {
    options.bucket_batches = of["bucket_batches"];
    return std::make_unique<DistributedBucketBatchSampler>(
        std::vector<int64_t>(of.values.begin(), of.values.end()),
        static_cast<size_t>(of["batch_size"]), options);
  }
  throw std::invalid_argument(of.sampler);
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) {
    const Case of(line);
    const auto before = made(of, "_before");
    before->set_epoch(static_cast<size_t>(of["epoch"]));
    const auto sampler = made(of, "");
    sampler->load_state(before->state(static_cast<size_t>(of["consumed"])));
    while (const auto batch = sampler->next(static_cast<size_t>(of["batch_size"]))) {
      for (const size_t index : *batch) std::printf("%zu ", index);
      std::printf("/ ");
    }
    std::printf("\n");
  }
}
