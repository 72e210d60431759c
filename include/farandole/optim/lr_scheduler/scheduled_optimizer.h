// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// An optimizer of LibTorch or Farandole for schedulers, which take it in place of the optimizer.
/// Copies share the initial learning rates, which torch keeps in the parameter groups of Python as
/// "initial_lr".
///
/// The optimizer outlives it. Threads: one call at a time, not during a step of the optimizer.
class FARANDOLE_API ScheduledOptimizer {
 public:
  /// The initial learning rates are those that the optimizer has now. Throws InvalidArgument if a
  /// group has options without a learning rate.
  ScheduledOptimizer(torch::optim::Optimizer& optimizer);

  size_t groups() const;
  /// Of each group.
  std::vector<double> lrs() const;
  /// Throws InvalidArgument unless there is one for each group.
  void set_lrs(const std::vector<double>& lrs) const;

  std::vector<double>& initial_lrs() const { return *initial_lrs_; }

  /// Whether all groups have a momentum or a beta1: those of SGD, RMSprop, LARS, Adam, AdamW, LAMB.
  bool has_momenta() const;
  std::vector<double> momenta() const;
  void set_momenta(const std::vector<double>& momenta) const;

 private:
  torch::optim::Optimizer* optimizer_;
  std::shared_ptr<std::vector<double>> initial_lrs_;
};

}  // namespace farandole
