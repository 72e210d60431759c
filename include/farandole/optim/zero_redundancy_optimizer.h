// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "farandole/ddp/distributed_data_parallel.h"
#include "farandole/export.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars_options.h"
#include "farandole/optim/master_weight_options.h"
#include "farandole/optim/rule_of_options.h"
#include "farandole/optim/sharded_optimizer.h"

namespace farandole {

class SavedStates;
class ShardStepper;
class StateFormat;
struct OwnedState;

struct ZeroOptions {
  /// The ranks; if empty, those of the parameters' DistributedDataParallel, or the default group.
  Group group = {};
  GradientMode gradients = GradientMode::kFull;
  /// Whether float32 master weights of half parameters are kept, and the rounding without them.
  MasterWeightOptions master_weights = {};
  /// Whether shards cut parameters anywhere or are whole parameters. nullopt: kElements for the
  /// optimizers of LibTorch and Farandole, which update each element on its own; kParameters for
  /// other optimizers from a factory.
  std::optional<Partition> partition = {};
  /// kHost divides the parameters among the ranks of each host, so that the new ones travel through
  /// its memory alone and only gradients between hosts.
  ShardOver shard_over = ShardOver::kWorld;
  /// Over groups without shared memory: step() returns while new parameters come from other ranks,
  /// and the next forward of the DistributedDataParallel waits for them. Call wait() before they
  /// are read or changed in any other way.
  bool overlap_with_ddp = false;
};

/// A LibTorch optimizer in which each rank updates a shard of the parameters and keeps the state of
/// this shard only (ZeRO stage 1; see sharded_optimizer.h).
///
///   farandole::DistributedDataParallel model(std::make_shared<Net>());
///   farandole::ZeroRedundancyOptimizer optimizer(model, farandole::AdamWOptions(1e-3));
///   loss_of(model(x), y).backward();
///   optimizer.step();  // every rank has all new parameters
///
/// The type of the options selects the optimizer. SGD, Adam, AdamW, LAMB and LARS are one pass over
/// gradients, state and the parameters of all ranks; for parameters of half types they keep float32
/// master weights, or round (ZeroOptions::master_weights). LibTorch's RMSprop and Adagrad, selected
/// by their options, and optimizers from a Factory run unchanged on the shards. If each element is
/// updated from its own gradient and state, shards cut parameters anywhere and are one-dimensional
/// (Partition::kElements). Other classes get whole parameters in their shapes, divided among ranks
/// by size (Partition::kParameters); each parameter must be updated from its own gradient and
/// state.
///
/// It can be used as a torch::optim::Optimizer: zero_grad(), LRScheduler, torch::save(). The
/// options of param_groups() may change between steps, in the same way on all ranks.
///
/// Errors: StepError, InvalidArgument, NotSupported and what collectives throw; LibTorch's own
/// c10::Error from an optimizer of a Factory. Threads: one call at a time, not during a backward.
class FARANDOLE_API ZeroRedundancyOptimizer final : public torch::optim::Optimizer {
 public:
  using Options = torch::optim::OptimizerOptions;
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  /// Makes an optimizer of these parameters (shards) with the options of each group.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups)>;

  /// `defaults`: the options of groups without options, for example LambOptions. Parameters have
  /// equal values on every rank by the first step. All constructors are collective.
  ZeroRedundancyOptimizer(Groups groups, const Options& defaults, const ZeroOptions& zero = {});
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, const Options& defaults,
                          const ZeroOptions& zero = {});
  /// For all parameters that the model does not ignore.
  template <class Net>
  ZeroRedundancyOptimizer(DistributedDataParallel<Net>& model, const Options& defaults,
                          const ZeroOptions& zero = {})
      : ZeroRedundancyOptimizer(tensors_of(model.replica()), defaults, zero) {}

  /// `make` is also called with tensors in the shapes of the parameters that have one element in
  /// memory, to find its class and default options.
  ZeroRedundancyOptimizer(Groups groups, Factory make, const ZeroOptions& zero = {});
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, Factory make,
                          const ZeroOptions& zero = {});
  template <class Net>
  ZeroRedundancyOptimizer(DistributedDataParallel<Net>& model, Factory make,
                          const ZeroOptions& zero = {})
      : ZeroRedundancyOptimizer(tensors_of(model.replica()), std::move(make), zero) {}

  ~ZeroRedundancyOptimizer() override;
  ZeroRedundancyOptimizer(const ZeroRedundancyOptimizer&) = delete;
  ZeroRedundancyOptimizer& operator=(const ZeroRedundancyOptimizer&) = delete;

  /// Updates this rank's shards and stores them on every rank. Returns the result of `closure`,
  /// which evaluates the model again. If it throws, all ranks throw, and nothing is changed.
  /// Collective.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// As torch::nn::utils::clip_grad_norm_() over all parameters, in both modes. Returns the norm
  /// before, which is the same on every rank. `norm_type` > 0, or infinite. Collective.
  double clip_grad_norm_(double max_norm, double norm_type = 2, bool error_if_nonfinite = false);
  /// As torch::nn::utils::clip_grad_value_(). Call it on all ranks.
  void clip_grad_value_(double clip_value);

  /// Adds a group, also after steps. Hides LibTorch's function; a group that is added through a
  /// reference to torch::optim::Optimizer gets shards in the next step. Collective.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// Makes new shards and moves their state: for parameters that were frozen, and to continue with
  /// other ranks (empty: the current ones) after set_process_group() of the model. Throws
  /// InvalidArgument if the state of a shard is on a lost rank. Collective.
  void rebuild(const Group& group = {});
  /// Returns when the parameters of the last step have arrived: see ZeroOptions::overlap_with_ddp.
  /// Local.
  void wait();

  /// Collects the state of all shards on one rank, for its save(), until the next step. Collective.
  void consolidate_state_dict(int to = 0);
  /// Writes the format of LibTorch's unsharded optimizer, which can load it. It also has the
  /// float32 master weights of half parameters or, with stochastic rounding, the number of steps of
  /// each parameter. Throws InvalidArgument on a rank without the collected state, and NotSupported
  /// for optimizers of a Factory other than LibTorch's.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads the archive of this or LibTorch's optimizer, written on any number of ranks; the same
  /// archive on every rank. If it does not fit, throws InvalidArgument before anything is changed.
  /// Local, unless frozen parameters have a state.
  void load(torch::serialize::InputArchive& archive) override;

  // Of checkpoints; the types belong to src/optim/state.
  /// What this rank has of the state; nothing where rank 0's host has all. Local.
  std::vector<OwnedState> owned_states();
  /// Takes this rank's pieces. Local, unless frozen parameters have a state.
  void take_states(const SavedStates& states);
  /// Throws NotSupported for optimizers of a Factory other than LibTorch's.
  const StateFormat& state_format() const;

  /// Bytes of the state on this rank.
  int64_t state_bytes() const;
  int rank() const;
  int world_size() const;
  const ShardedOptimizer& engine() const { return *engine_; }
  ShardedOptimizer& engine() { return *engine_; }

 private:
  static std::vector<at::Tensor> tensors_of(const Replica& replica);

  struct Sample;  ///< what a factory makes

  ZeroRedundancyOptimizer(Groups groups, Factory make, Sample sample, const ZeroOptions& zero);
  void begin(Groups groups, Factory make, const ZeroOptions& zero, Partition known);
  void take_group(const torch::optim::OptimizerParamGroup& group);
  void check_options() const;
  void check_known_groups() const;
  ShardedOptimizer::ParameterGroup planned_group(size_t index) const;
  void take_new_groups();
  void prepare_step();
  void plan_frozen(const SavedStates& states);
  void forget_consolidated();
  void save_steps(torch::serialize::OutputArchive& archive) const;

  std::unique_ptr<ShardedOptimizer> engine_;
  std::unique_ptr<ShardStepper> stepper_;
  std::vector<std::vector<at::Tensor>> known_groups_;  ///< that engine_ has
  /// On the rank that state_ was brought to; by group and parameter, undefined where none is.
  std::vector<std::vector<at::Tensor>> masters_;
  bool is_consolidated_ = false;
};

}  // namespace farandole
