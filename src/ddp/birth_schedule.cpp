// SPDX-License-Identifier: Apache-2.0
#include "ddp/birth_schedule.h"

#include <utility>

namespace farandole {

BirthSchedule::BirthSchedule(std::vector<size_t> bytes)
    : bytes_(std::move(bytes)),
      sizes_(bytes_.begin(), bytes_.end()),
      places_(bytes_.size()),
      allocation_of_(bytes_.size(), kNone) {}

void BirthSchedule::settle(std::vector<std::shared_ptr<Birthplace>> places) {
  const std::lock_guard<std::mutex> lock(mutex_);
  places_ = std::move(places);
}

void BirthSchedule::begin() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = true;
  next_ = 0;
  latest_.clear();
}

void BirthSchedule::end() {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_running_ = false;
}

at::DataPtr BirthSchedule::serve(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!counts(bytes)) return {};
  const size_t allocation = next_++;
  if (allocation >= parameter_of_.size() || parameter_of_[allocation] == kNone) return {};
  const auto& place = places_[parameter_of_[allocation]];
  return place && place->bytes() == bytes ? place->lend() : at::DataPtr();
}

void BirthSchedule::on_served(const void* data, size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (counts(bytes)) latest_[data] = next_ - 1;
}

void BirthSchedule::learn(size_t parameter, const at::Tensor& gradient) {
  const std::lock_guard<std::mutex> lock(mutex_);
  size_t& allocation = allocation_of_[parameter];
  if (allocation != kNone) parameter_of_[allocation] = kNone;
  allocation = kNone;
  const auto found = latest_.find(gradient.const_data_ptr());
  if (found == latest_.end()) return;
  allocation = found->second;
  if (allocation >= parameter_of_.size()) parameter_of_.resize(allocation + 1, kNone);
  if (parameter_of_[allocation] != kNone) allocation_of_[parameter_of_[allocation]] = kNone;
  parameter_of_[allocation] = parameter;
}

}  // namespace farandole
