// SPDX-License-Identifier: Apache-2.0
#include "ddp/deferred_moves.h"

#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_mul.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "ddp/stream_use.h"

namespace farandole {

void DeferredMoves::add(size_t bucket, const at::Tensor& gradient, const at::Tensor& slot,
                        double scale) {
  of_bucket_[bucket].moves.push_back({gradient, slot, scale});
  of_bucket_[bucket].streams.note(gradient.device());
}

void DeferredMoves::finish(size_t bucket) {
  if (!has(bucket)) return;
  const auto [moves, streams] = std::exchange(of_bucket_[bucket], {});
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> gradients;
  std::vector<at::Tensor> slots;
  streams.join();
  for (const Move& move : moves) {
    gradients.push_back(move.gradient);
    slots.push_back(move.slot);
    keep_for_current_stream(move.gradient);
  }
  at::_foreach_copy_(slots, gradients);
  // One backward has one loss weight.
  const double scale = moves.front().scale;
  if (scale != 1) at::_foreach_mul_(slots, scale);
}

void DeferredMoves::finish_all() {
  for (size_t bucket = 0; bucket < of_bucket_.size(); ++bucket) {
    for (Move& move : of_bucket_[bucket].moves) move.slot = move.slot.variable_data();
    finish(bucket);
  }
}

}  // namespace farandole
