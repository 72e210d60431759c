// SPDX-License-Identifier: Apache-2.0
#include "ddp/loss_weight.h"

#include <limits>

#include "ddp/gradient_hook.h"
#include "ddp/gradient_store.h"
#include "farandole/error.h"

namespace farandole {

void LossWeight::set(std::optional<double> weight) {
  if (weight && !(*weight >= 0 && *weight <= std::numeric_limits<double>::max())) {
    throw InvalidArgument(
        "loss-weight", "set_loss_weight() got " + std::to_string(*weight) + ".",
        "the weight is the number of items that the loss is a mean of.",
        "pass a number of at least 0, such as the number of tokens, samples or pixels.");
  }
  pass_ = weight;
}

bool LossWeight::count_pass(const GradientStore& gradients) {
  const int task = current_graph_task();
  if (task == counted_task_) return true;
  if (is_weighted_ && gradients.are_gone()) forget();
  const bool adds_up =
      is_weighted_ ? *is_weighted_ == is_set() : !is_set() || !gradients.has_old_ones();
  counted_task_ = task;
  is_weighted_ = is_set();
  sum_ += pass_.value_or(0);
  return adds_up;
}

void LossWeight::forget() {
  sum_ = 0;
  counted_task_ = -1;
  is_weighted_.reset();
}

void LossWeight::refuse_pass() const {
  throw InvalidArgument(
      "mixed-loss-weights",
      std::string("a loss ") + (is_set() ? "with" : "without") +
          " a weight was to be added to gradients that have " + (is_set() ? "none." : "one."),
      "gradients become sum(w * g) / sum(w) only if every pass since the last average has a "
      "weight; an average itself has none.",
      "zero the gradients after each synchronized backward; accumulate passes under no_sync(), and "
      "call set_loss_weight() before each of them or before none.");
}

void LossWeight::refuse_shared(const std::string& parameter) {
  throw InvalidArgument(
      "weighted-shared-parameter",
      "set_loss_weight() was called for a model that shares parameter '" + parameter +
          "' with another wrapped model.",
      "each model would multiply the gradient of the other model's loss by its weight.",
      "wrap one module that contains both models, or leave the weights out.");
}

}  // namespace farandole
