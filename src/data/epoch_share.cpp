// SPDX-License-Identifier: Apache-2.0
#include "farandole/data/epoch_share.h"

#include <algorithm>
#include <utility>

#include "farandole/error.h"
#include "farandole/process_group/collectives.h"

namespace farandole {
namespace {

InvalidArgument of_other_data(const std::string& what) {
  return {"sampler-state", "a sampler got a state that is not one of its data: " + what + ".",
          "a state has the place in one order of samples, which its seed, the size of the dataset "
          "and the kind of the sampler determine.",
          "load what a sampler with the same arguments has saved; num_replicas, rank and seed may "
          "differ."};
}

int64_t number_in(const SamplerState& state, const std::string& name) {
  const auto found = state.find(name);
  if (found == state.end()) throw of_other_data("it lacks '" + name + "'");
  return found->second;
}

}  // namespace

EpochShare::EpochShare(int64_t size, Order order, const SamplerOptions& options, SamplerState kind,
                       int64_t batch_size)
    : size_(size),
      order_(std::move(order)),
      kind_(std::move(kind)),
      batch_size_(batch_size),
      num_replicas_(options.num_replicas ? *options.num_replicas : farandole::world_size()),
      rank_(options.rank ? *options.rank : farandole::rank()),
      seed_(options.seed),
      drop_last_(options.drop_last),
      even_divisible_(options.even_divisible) {
  kind_["size"] = size;
  if (rank_ < 0 || rank_ >= num_replicas_) {
    throw InvalidArgument("sampler-rank",
                          "a sampler got rank " + std::to_string(rank_) + " of " +
                              std::to_string(num_replicas_) + " num_replicas.",
                          "ranks count from 0 to num_replicas - 1.",
                          "pass both, or leave both out for those of the default group.");
  }
  if (drop_last_ && !even_divisible_) {
    throw InvalidArgument("sampler-tail", "a sampler got drop_last without even_divisible.",
                          "drop_last leaves samples out so that all ranks have as many, and "
                          "without even_divisible no sample is left out.",
                          "pass one of them.");
  }
}

int64_t EpochShare::units() const {
  return drop_last_ ? size_ / batch_size_ : (size_ + batch_size_ - 1) / batch_size_;
}

int64_t EpochShare::length() const {
  const int64_t left = units() - start_;
  if (drop_last_) return left / num_replicas_;
  const int64_t own = even_divisible_ ? left : std::max<int64_t>(0, left - rank_);
  return (own + num_replicas_ - 1) / num_replicas_;
}

int64_t EpochShare::total_length() const {
  return even_divisible_ ? length() * num_replicas_ : units() - start_;
}

void EpochShare::set_epoch(int64_t epoch) {
  if (epoch < 0) {
    throw InvalidArgument("sampler-epoch", "a sampler got epoch " + std::to_string(epoch) + ".",
                          "epochs count from 0.", "pass the number of the epoch.");
  }
  if (epoch == epoch_) return;
  epoch_ = epoch;
  start_ = 0;
  has_begun_ = false;
}

std::vector<int64_t> EpochShare::positions() const {
  std::vector<int64_t> positions(static_cast<size_t>(length()));
  int64_t next = start_ + rank_;
  for (int64_t& position : positions) {
    position = next < units() ? next : (next - units()) % units();  // padding from the beginning
    next += num_replicas_;
  }
  return positions;
}

std::vector<int64_t> EpochShare::begin_order() {
  start_ = next_position();
  has_begun_ = true;
  return order_(static_cast<uint64_t>(seed_) + static_cast<uint64_t>(epoch_));
}

std::vector<int64_t> EpochShare::begin_pass() {
  const std::vector<int64_t> order = begin_order();
  std::vector<int64_t> indices = positions();
  for (int64_t& index : indices) index = order[static_cast<size_t>(index)];
  return indices;
}

std::vector<std::vector<int64_t>> EpochShare::begin_batches() {
  const std::vector<int64_t> order = begin_order();
  std::vector<std::vector<int64_t>> batches;
  for (const int64_t position : positions()) {
    const auto begin = order.begin() + position * batch_size_;
    batches.emplace_back(begin, begin + std::min(batch_size_, order.end() - begin));
  }
  return batches;
}

SamplerState EpochShare::state(int64_t consumed) const {
  if (consumed < 0) {
    throw InvalidArgument(
        "sampler-consumed",
        "a sampler was asked for its state after " + std::to_string(consumed) + " samples.",
        "it counts what the training has taken in this pass.",
        "pass batches * batch_size, or the batches of a batch sampler.");
  }
  SamplerState state = kind_;
  state["epoch"] = epoch_;
  state["seed"] = seed_;
  const bool is_over = consumed >= length();
  state["position"] = is_over ? units() : std::min(units(), start_ + consumed * num_replicas_);
  return state;
}

void EpochShare::check_state(const SamplerState& state) const {
  for (const auto& [name, number] : kind_) {
    const int64_t other = number_in(state, name);
    if (other != number) {
      throw of_other_data("its '" + name + "' is " + std::to_string(other) + " and not " +
                          std::to_string(number));
    }
  }
  if (state.size() != kind_.size() + 3) throw of_other_data("it has other names");
  const int64_t epoch = number_in(state, "epoch");
  const int64_t position = number_in(state, "position");
  if (epoch < 0) throw of_other_data("its 'epoch' is " + std::to_string(epoch));
  if (position < 0 || position > (size_ + batch_size_ - 1) / batch_size_) {
    throw of_other_data("its 'position' is " + std::to_string(position));
  }
  number_in(state, "seed");
}

void EpochShare::load_state(const SamplerState& state) {
  check_state(state);
  epoch_ = state.at("epoch");
  seed_ = state.at("seed");
  start_ = std::min(state.at("position"), units());
  has_begun_ = false;
}

}  // namespace farandole
