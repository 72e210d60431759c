// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/rng_states.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>

#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "log.h"

namespace farandole::checkpoint {
namespace {

std::string key_of(int rank, const char* generator) {
  char text[64];
  std::snprintf(text, sizeof(text), "rng/rank-%05d/%s", rank, generator);
  return text;
}

at::Generator generator_of(at::DeviceType type) {
  return at::globalContext().defaultGenerator(at::Device(type));
}

at::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> guard(generator.mutex());
  return generator.get_state();
}

void set_state(at::Generator generator, const at::Tensor& state) {
  const std::lock_guard<std::mutex> guard(generator.mutex());
  generator.set_state(state);
}

}  // namespace

void save_rng(bool on_gpu, SliceList& slices) {
  slices.add_own(key_of(slices.rank(), "torch"), state_of(generator_of(at::kCPU)));
  if (on_gpu) slices.add_own(key_of(slices.rank(), "cuda"), state_of(generator_of(at::kCUDA)));
}

std::function<void()> load_rng(const CheckpointReader& reader, int rank, int world_size) {
  if (reader.world_size() != world_size) {
    if (rank != 0) return [] {};
    log(LogLevel::kInfo, "ranks that saved the checkpoint: " + std::to_string(reader.world_size()) +
                             ", ranks that load it: " + std::to_string(world_size) +
                             "; the states of random number generators are not loaded.");
    return [] {};
  }
  std::vector<std::pair<at::DeviceType, at::Tensor>> states;
  const auto read = [&](at::DeviceType type, const char* generator) {
    const std::string key = key_of(rank, generator);
    if (reader.entries().count(key) > 0) states.emplace_back(type, reader.read(key));
  };
  read(at::kCPU, "torch");
  if (at::globalContext().hasCUDA()) read(at::kCUDA, "cuda");
  return [states] {
    for (const auto& [type, state] : states) set_state(generator_of(type), state);
  };
}

}  // namespace farandole::checkpoint
