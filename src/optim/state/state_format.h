// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace farandole {

/// What a torch::optim::OptimizerParamState has; points into it.
struct StateFields {
  int64_t* step;  ///< null if it counts none
  /// By LibTorch's names, which are those of UpdateRule too; undefined ones are not in use.
  std::vector<std::pair<std::string, at::Tensor*>> tensors;
};

/// How one of LibTorch's optimizers, or LAMB or LARS, keeps and saves the state of parameters.
/// Threads: any; const.
class StateFormat {
 public:
  using Options = torch::optim::OptimizerOptions;
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  using State = torch::optim::OptimizerParamState;

  virtual ~StateFormat();

  virtual std::unique_ptr<State> make_state() const = 0;
  virtual bool has(const State& state) const = 0;
  /// Of a state that it has.
  virtual StateFields fields(State& state) const = 0;
  virtual void copy(const Options& from, Options& to) const = 0;
  /// LibTorch's own archive of an optimizer with these states and options.
  virtual void save(torch::serialize::OutputArchive& archive,
                    const torch::optim::Optimizer& optimizer) const = 0;
  virtual void load(torch::serialize::InputArchive& archive,
                    torch::optim::Optimizer& optimizer) const = 0;
  /// LibTorch's optimizer; null for LAMB and LARS.
  virtual std::unique_ptr<torch::optim::Optimizer> make_optimizer(
      Groups groups, const Options& defaults) const = 0;
};

/// Null for options that are not of SGD, Adam, AdamW, RMSprop, Adagrad, LAMB or LARS.
const StateFormat* state_format_of(const torch::optim::OptimizerOptions& options);

/// The hyperparameters, for messages and to compare ranks; the class and lr of unknown ones.
std::string description_of(const torch::optim::OptimizerOptions& options);
/// The name of its class.
std::string class_of(const torch::optim::OptimizerOptions& options);

}  // namespace farandole
