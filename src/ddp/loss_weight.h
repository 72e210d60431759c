// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace farandole {

class GradientStore;

/// What the passes that add up to one average count for (Reducer::set_loss_weight()).
///
/// Threads: one call at a time.
class LossWeight {
 public:
  /// The number of items that the loss of the next passes is a mean over; nullopt: no weights.
  /// Throws InvalidArgument if it is not finite or less than 0.
  void set(std::optional<double> weight);
  bool is_set() const { return pass_.has_value(); }
  /// What gradients of the current pass are multiplied by.
  double factor() const { return pass_.value_or(1); }
  /// Of this rank in the average: the sum over the passes since the last one, or 1.
  double sum() const { return pass_ ? sum_ : 1; }

  /// Counts the pass that runs on this thread, once. False if its gradients would be added to some
  /// that have a weight where these have none, or the reverse.
  bool count_pass(const GradientStore& gradients);
  /// The passes so far are averaged, or gone.
  void forget();
  /// Throws the InvalidArgument for a pass that count_pass() refuses.
  [[noreturn]] void refuse_pass() const;
  /// Throws the InvalidArgument for a parameter of several wrapped models, each of which would
  /// weight its gradient.
  [[noreturn]] static void refuse_shared(const std::string& parameter);

 private:
  std::optional<double> pass_;
  double sum_ = 0;                   ///< of the passes since the last average, this one included
  std::optional<bool> is_weighted_;  ///< whether those have a weight; nullopt: none so far
  int counted_task_ = -1;            ///< the graph task that was counted last
};

}  // namespace farandole
