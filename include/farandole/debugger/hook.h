// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole::debugger {

struct HookOptions {
  std::string folder;
  /// Of "weights", "biases" and "gradients": those of registered modules that are saved.
  std::set<std::string> collections = {"gradients"};
  /// A step is saved if it is a multiple of `save_interval`, from `start_step` on and before
  /// `end_step`.
  int64_t save_interval = 500;
  int64_t start_step = 0;
  int64_t end_step = std::numeric_limits<int64_t>::max();
  /// Of "min", "max", "mean", "std", "variance", "sum", "prod", "l1" and "l2", and of these with
  /// "abs_" of absolute values.
  std::vector<std::string> reductions = {"min", "max", "mean", "std", "abs_mean", "l2"};
  bool save_raw_tensor = false;  ///< all elements too
  bool all_workers = false;      ///< every rank saves; else rank 0 alone
  Group group = {};              ///< the ranks; the default group if there is one, else alone
};

/// Saves tensors of a training into files that farandole.debugger.create_trial() of Python reads,
/// and rules there look at; see docs/debugger.md. Modules of LibTorch tell nobody of their forward,
/// so the program says where a step begins and where its backward has ended:
///
///     Hook hook({"debug"});
///     hook.register_module(*net);
///     for (...) {
///       hook.begin_step();
///       const at::Tensor loss = loss_of(ddp, batch);
///       hook.save_loss("loss", loss);
///       loss.backward();
///       hook.after_backward();
///       optimizer.step();
///     }
///
/// Weights and biases are those before the step; gradients are what the optimizer gets, averages of
/// all ranks with a DistributedDataParallel. On steps that are not saved it does nothing. A
/// training that goes on in the same folder counts on from its last step.
///
/// Errors: InvalidArgument (options), SystemError (the folder cannot be written). A disk that gets
/// full later is logged, and the training goes on. Threads: the one
/// that trains. Nothing is sent to other ranks.
class FARANDOLE_API Hook {
 public:
  explicit Hook(HookOptions options);
  /// Says that the worker has ended.
  ~Hook();
  Hook(const Hook&) = delete;
  Hook& operator=(const Hook&) = delete;

  /// Parameters are named "<class>_<name>", as in Python: "Net_fc.weight" of a Net or NetImpl. The
  /// hook keeps their tensors.
  void register_module(const torch::nn::Module& module);
  /// "TRAIN", "EVAL", "PREDICT" or "GLOBAL", the first one: each counts its own steps.
  void set_mode(const std::string& mode);
  void begin_step();
  /// Whether the present step is.
  bool is_saved() const;
  /// Of all modes; -1 before the first.
  int64_t step() const;
  void after_backward();

  /// A number as "<name>_output_0", of the collection losses.
  void save_loss(const std::string& name, const at::Tensor& loss);
  /// A number as "scalar/<name>", in every step.
  void save_scalar(const std::string& name, double value);
  /// All elements of a tensor.
  void save_tensor(const std::string& name, const at::Tensor& tensor,
                   const std::string& collection = "default");

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace farandole::debugger
