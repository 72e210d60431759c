// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/born_gradients.h"

#include <algorithm>

namespace farandole {

BornGradients::BornGradients(const std::vector<size_t>& bytes) {
  const bool are_any =
      std::any_of(bytes.begin(), bytes.end(), [](size_t each) { return each != 0; });
  if (are_any) predictor_ = std::make_shared<AllocationPredictor>(bytes);
}

void BornGradients::use(const std::shared_ptr<Buckets>& buckets,
                        const std::vector<at::Tensor>& parameters) {
  slots_.assign(parameters.size(), nullptr);
  if (!buckets->symmetric()) predictor_.reset();
  if (!predictor_) return;
  for (size_t bucket = 0; bucket < buckets->size(); ++bucket) {
    for (const auto& slot : buckets->plan().buckets[bucket].slots) {
      if (!predictor_->wants(slot.parameter)) continue;
      const at::Tensor tensor = buckets->slot_tensor(bucket, slot, parameters[slot.parameter]);
      slots_[slot.parameter] = AliasedSlot::of(tensor.mutable_data_ptr(), tensor.nbytes(), buckets);
    }
  }
  predictor_->assign_slots(slots_);
}

std::shared_ptr<AliasedSlot> BornGradients::slot(size_t parameter) const {
  return slots_.empty() ? nullptr : slots_[parameter];
}

void BornGradients::begin() const {
  if (!predictor_) return;
  predictor_->begin();
  watch_allocations(predictor_);
}

void BornGradients::end() const {
  if (!predictor_) return;
  predictor_->end();
  watch_allocations(nullptr);
}

void BornGradients::learn(size_t parameter, const at::Tensor& gradient) const {
  if (predictor_) predictor_->learn(parameter, gradient);
}

}  // namespace farandole
