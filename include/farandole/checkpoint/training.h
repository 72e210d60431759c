// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <map>
#include <string>

#include "farandole/amp/grad_scaler.h"
#include "farandole/data/epoch_sampler.h"
#include "farandole/optim/lr_scheduler/optimizer_scheduler.h"

namespace farandole {

/// One part of a training, or several by name, as the two models of a GAN. They outlive this.
template <class T>
class NamedParts {
 public:
  NamedParts() = default;
  NamedParts(T* part) : NamedParts(std::map<std::string, T*>{{"", part}}) {}
  /// Those that are null are left out.
  NamedParts(const std::map<std::string, T*>& parts) {
    for (const auto& [name, part] : parts) {
      if (part != nullptr) by_name_.emplace(name, part);
    }
  }

  /// A single part has the name "".
  const std::map<std::string, T*>& by_name() const { return by_name_; }

 private:
  std::map<std::string, T*> by_name_;
};

/// What a checkpoint has of a training, the same in C++ and Python. What is left out is neither
/// saved nor loaded.
///
///   farandole::Training training;
///   training.model = model.module().get();  // within a DistributedDataParallel
///   training.optimizer = &optimizer;
struct Training {
  /// Parameters, and buffers as rank 0 has them, by the names of named_parameters() and
  /// named_buffers(); those that have two names once. Python finds them if it has the same names.
  NamedParts<torch::nn::Module> model;
  /// ZeroRedundancyOptimizers, whose ranks save their shards, or SGD, Adam, AdamW, RMSprop and
  /// Adagrad of LibTorch, the same on every rank. Their parameters are named by the models, or by
  /// where they stand.
  NamedParts<torch::optim::Optimizer> optimizer;
  OptimizerScheduler* scheduler = nullptr;
  GradScaler* scaler = nullptr;
  EpochSampler* sampler = nullptr;
  /// Samples (of a batch sampler: batches) that this rank has taken in the sampler's pass, for a
  /// save: see EpochSampler::state().
  size_t consumed = 0;
};

/// What else a program saves: bool, int64_t, double, std::string, at::Tensor, None, and lists,
/// tuples and dictionaries of these. Python has them as its own.
using CheckpointValues = std::map<std::string, c10::IValue>;

}  // namespace farandole
