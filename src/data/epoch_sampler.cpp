// SPDX-License-Identifier: Apache-2.0
#include "farandole/data/epoch_sampler.h"

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <string>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

constexpr const char* kSamplerName = "sampler";

}  // namespace

EpochSampler::EpochSampler(int64_t size, EpochShare share)
    : DistributedSampler(static_cast<size_t>(size), static_cast<size_t>(share.num_replicas()),
                         static_cast<size_t>(share.rank())),
      pass_(std::make_shared<Pass>(Pass{std::move(share), false, {}, {}, 0})) {}

void EpochSampler::set_epoch(size_t epoch) {
  pass_->share.set_epoch(static_cast<int64_t>(epoch));
  epoch_ = known_epoch_ = epoch;
}

size_t EpochSampler::epoch() const { return static_cast<size_t>(pass_->share.epoch()); }

size_t EpochSampler::size() const { return static_cast<size_t>(pass_->share.length()); }

SamplerState EpochSampler::state(size_t consumed) const {
  return pass_->share.state(static_cast<int64_t>(consumed));
}

void EpochSampler::load_state(const SamplerState& state) {
  pass_->share.load_state(state);
  pass_->has_begun = false;
  epoch_ = known_epoch_ = epoch();
}

void EpochSampler::check_state(const SamplerState& state) const { pass_->share.check_state(state); }

void EpochSampler::follow_epoch() {
  if (epoch_ != known_epoch_) set_epoch(epoch_);
}

void EpochSampler::reset(std::optional<size_t> new_size) {
  if (new_size && *new_size != size_) {
    throw InvalidArgument("sampler-resized",
                          "a sampler of " + std::to_string(size_) + " samples was reset to " +
                              std::to_string(*new_size) + ".",
                          "its order and its state are those of one dataset.",
                          "make a new sampler for a dataset of another size.");
  }
  follow_epoch();
  begin();
  pass_->next = 0;
  pass_->has_begun = true;
}

void EpochSampler::begin() { pass_->indices = pass_->share.begin_pass(); }

std::optional<std::vector<size_t>> EpochSampler::next(size_t batch_size) {
  if (!pass_->has_begun) reset();
  const auto& indices = pass_->indices;
  const size_t first = pass_->next;
  const size_t end = std::min(indices.size(), first + batch_size);
  if (first == end) return std::nullopt;
  pass_->next = end;
  return std::vector<size_t>(indices.begin() + static_cast<int64_t>(first),
                             indices.begin() + static_cast<int64_t>(end));
}

void EpochSampler::save(torch::serialize::OutputArchive& archive) const {
  save(archive, pass_->has_begun ? pass_->next : 0);
}

void EpochSampler::save(torch::serialize::OutputArchive& archive, size_t consumed) const {
  c10::Dict<std::string, int64_t> numbers;
  for (const auto& [name, number] : state(consumed)) numbers.insert(name, number);
  archive.write(kSamplerName, c10::IValue(numbers));
}

void EpochSampler::load(torch::serialize::InputArchive& archive) {
  c10::IValue found;
  if (!archive.try_read(kSamplerName, found) || !found.isGenericDict()) {
    throw InvalidArgument("sampler-archive",
                          "a sampler was loaded from an archive without a sampler.",
                          std::string("there is no '") + kSamplerName + "' in it.",
                          "load an archive that save() of a sampler has written.");
  }
  SamplerState state;
  for (const auto& entry : found.toGenericDict()) {
    state[entry.key().toStringRef()] = entry.value().toInt();
  }
  load_state(state);
}

}  // namespace farandole
