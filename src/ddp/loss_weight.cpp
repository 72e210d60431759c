// SPDX-License-Identifier: Apache-2.0
// What the passes that add up to one average count for.
#include <ATen/ops/any.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <limits>

#include "ddp/gradient_hook.h"
#include "ddp/parameter_gradient.h"
#include "farandole/ddp/reducer.h"
#include "farandole/error.h"

namespace farandole {
namespace {

bool has_elements_but_zeros(const at::Tensor& gradient) {
  const c10::NoGradGuard no_grad;
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.any().item<bool>();
}

}  // namespace

void Reducer::set_loss_weight(std::optional<double> weight) {
  if (weight && !(*weight >= 0 && *weight <= std::numeric_limits<double>::max())) {
    throw InvalidArgument("set_loss_weight() got " + std::to_string(*weight) + ".",
                          "a weight says how many items the loss is a mean over.",
                          "pass a number of at least 0: tokens, samples, pixels.");
  }
  const std::lock_guard lock(mutex_);
  loss_weight_ = weight;
}

/// Adds the loss weight of this pass, once for each. False if its gradients are to be added to some
/// that count otherwise.
bool Reducer::count_weight() {
  const int task = current_graph_task();
  if (task == weighted_task_) return true;
  if (is_weighted_ && gradients_are_gone()) forget_weight();
  const bool is_weighted = loss_weight_.has_value();
  const bool adds_up =
      is_weighted_ ? *is_weighted_ == is_weighted : !is_weighted || !has_old_gradients();
  weighted_task_ = task;
  is_weighted_ = is_weighted;
  weight_ += loss_weight_.value_or(0);
  return adds_up;
}

/// Whether the program has dropped what the passes so far have added up.
bool Reducer::gradients_are_gone() const {
  return std::none_of(parameters_.begin(), parameters_.end(), [](const auto& parameter) {
    return parameter->parameter().grad().defined();
  });
}

/// Whether some p.grad is left of an earlier average, or set by hand.
bool Reducer::has_old_gradients() const {
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& gradient = parameters_[index]->parameter().grad();
    if (progress_[index].was_touched || !parameters_[index]->is_active()) continue;
    if (gradient.defined() && has_elements_but_zeros(gradient)) return true;
  }
  return false;
}

void Reducer::refuse_weight() {
  const bool is_weighted = loss_weight_.has_value();
  if (state_ != State::kRunning) forget_weight();
  throw InvalidArgument(
      std::string("a loss ") + (is_weighted ? "with" : "without") +
          " a weight was to be added to gradients that have " + (is_weighted ? "none." : "one."),
      "gradients become sum(w * g) / sum(w) if each pass since the last average has a weight; that "
      "average itself has none.",
      "zero the gradients after each synchronized backward; add passes up under no_sync(), and "
      "call set_loss_weight() before each of them or before none.");
}

void Reducer::forget_weight() {
  weight_ = 0;
  weighted_task_ = -1;
  is_weighted_.reset();
}

/// What this rank's gradients count for.
double Reducer::own_weight() const { return joined_weight_.value_or(loss_weight_ ? weight_ : 1); }

}  // namespace farandole
