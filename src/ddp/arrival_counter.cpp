// SPDX-License-Identifier: Apache-2.0
#include "ddp/arrival_counter.h"

#include <utility>

#include "ddp/gradient_hook.h"

namespace farandole {

std::shared_ptr<ArrivalCounter> ArrivalCounter::make(const std::vector<at::Tensor>& parameters,
                                                     Callback callback) {
  return std::shared_ptr<ArrivalCounter>(new ArrivalCounter(parameters, std::move(callback)));
}

ArrivalCounter::ArrivalCounter(const std::vector<at::Tensor>& parameters, Callback callback)
    : callback_(std::move(callback)) {
  for (const at::Tensor& parameter : parameters) parameters_.emplace_back(parameter, false);
}

void ArrivalCounter::reset(int64_t passes) {
  const std::lock_guard lock(mutex_);
  left_.assign(parameters_.size(), passes);
  all_left_ = passes * static_cast<int64_t>(parameters_.size());
  has_arrivals_ = false;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    if (!parameters_[index].has_changed()) continue;
    if (const auto node = parameters_[index].renew()) {  // autograd has another one
      node->add_post_hook(std::make_unique<AccumulatedHook>(
          weak_from_this(), [this, index] { on_accumulated(index); }));
    }
  }
}

bool ArrivalCounter::has_arrivals() const {
  const std::lock_guard lock(mutex_);
  return has_arrivals_;
}

/// Without the lock in the callback, which may wait for other threads.
void ArrivalCounter::on_accumulated(size_t index) {
  if (count(index)) callback_(std::nullopt);
}

/// Whether that was the last one.
bool ArrivalCounter::count(size_t index) {
  {
    const std::lock_guard lock(mutex_);
    if (left_[index] > 0) {
      --left_[index];
      has_arrivals_ = true;
      return --all_left_ == 0;
    }
  }
  callback_(index);
  return false;
}

}  // namespace farandole
