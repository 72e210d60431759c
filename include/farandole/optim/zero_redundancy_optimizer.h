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
#include "farandole/optim/half_options.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars_options.h"
#include "farandole/optim/rule_of_options.h"
#include "farandole/optim/sharded_optimizer.h"

namespace farandole {

class ShardUpdate;
struct WholeState;

struct ZeroOptions {
  /// The ranks; those of the parameters' DistributedDataParallel, or the default group, if empty.
  Group group = {};
  GradientMode gradients = GradientMode::kFull;
  /// Whether float32 values of half parameters are kept, and how parameters are rounded without.
  HalfOptions halves = {};
  /// Whether shards cut parameters anywhere or are whole parameters. nullopt: kElements for
  /// optimizers of LibTorch and of Farandole, which update each element alone; kParameters for
  /// others, which come from a factory.
  std::optional<Partition> partition = {};
};

/// An optimizer of LibTorch that lets each rank update a shard of the parameters, and keep the
/// state of that shard alone (ZeRO stage 1; see sharded_optimizer.h).
///
///   farandole::DistributedDataParallel model(std::make_shared<Net>());
///   farandole::ZeroRedundancyOptimizer optimizer(model, farandole::AdamWOptions(1e-3));
///   loss_of(model(x), y).backward();
///   optimizer.step();  // every rank has all new parameters
///
/// The options choose what is computed. SGD, Adam, AdamW, LAMB and LARS are one pass over
/// gradients, state and the parameters of all ranks, and keep parameters of half types in float32
/// too, or round them (ZeroOptions::halves). Others come from a Factory and run unchanged on the
/// shards; so do LibTorch's RMSprop and Adagrad, by their options. Where each element is updated
/// from its own gradient and state alone, shards cut parameters anywhere, and are tensors of one
/// dimension (Partition::kElements). Other classes get whole parameters, in their shapes, which are
/// divided among ranks by size (Partition::kParameters): each must be updated from its own gradient
/// and state.
///
/// What takes a torch::optim::Optimizer takes it: zero_grad(), LRScheduler, torch::save(). Options
/// of param_groups() may be changed between steps, on all ranks alike.
///
/// Errors: StepError, InvalidArgument, NotSupported and what collectives throw; LibTorch's own
/// c10::Error out of an optimizer of a Factory. Threads: one call at a time, not in a backward.
class FARANDOLE_API ZeroRedundancyOptimizer final : public torch::optim::Optimizer {
 public:
  using Options = torch::optim::OptimizerOptions;
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;
  /// Makes an optimizer of these parameters, which are shards, with the options of each group.
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups)>;

  /// `defaults`: those of groups without options; LambOptions, for example. Parameters have the
  /// same values on every rank. Each is collective.
  ZeroRedundancyOptimizer(Groups groups, const Options& defaults, const ZeroOptions& zero = {});
  ZeroRedundancyOptimizer(std::vector<at::Tensor> parameters, const Options& defaults,
                          const ZeroOptions& zero = {});
  /// Of all parameters that the model does not ignore.
  template <class Net>
  ZeroRedundancyOptimizer(DistributedDataParallel<Net>& model, const Options& defaults,
                          const ZeroOptions& zero = {})
      : ZeroRedundancyOptimizer(tensors_of(model.replica()), defaults, zero) {}

  /// `make` is also called with stand-ins of one element in the shapes of the parameters, to learn
  /// its class and the default options.
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

  /// Updates this rank's shards and stores them on every rank. Returns what `closure` returned,
  /// which evaluates the model anew. If it throws, all ranks throw, and nothing is changed.
  /// Collective.
  at::Tensor step(LossClosure closure = nullptr) override;

  /// As torch::nn::utils::clip_grad_norm_() of all parameters here, in both modes: returns the norm
  /// before, the same on every rank. `norm_type` > 0, or infinite. Collective.
  double clip_grad_norm_(double max_norm, double norm_type = 2, bool error_if_nonfinite = false);
  /// As torch::nn::utils::clip_grad_value_(). Call it on all ranks.
  void clip_grad_value_(double clip_value);

  /// One more group, also after steps. Hides LibTorch's; a group that comes through that, by a
  /// reference to torch::optim::Optimizer, is planned in the next step. Collective.
  void add_param_group(const torch::optim::OptimizerParamGroup& group);
  /// Cuts shards anew and brings their state there: for parameters that were frozen, and to go on
  /// with other ranks (none: the present ones) after set_process_group() of the model. Throws
  /// InvalidArgument if the state of a shard is on a rank that is gone. Collective.
  void rebuild(const Group& group = {});
  /// Returns when the parameters of the last step have come. Local, and only of use over groups
  /// without shared memory, to read parameters before the next forward of the model.
  void wait();

  /// Brings the state of all shards to one rank, for its save(). It stays until the next step.
  /// Collective.
  void consolidate_state_dict(int to = 0);
  /// Writes what LibTorch's optimizer of all parameters would write, which loads it; and the
  /// float32 values of parameters of half types beside that, or, with stochastic rounding, how many
  /// steps each parameter has taken. Throws InvalidArgument on a rank that
  /// has not got the state, NotSupported for optimizers of a Factory other than LibTorch's.
  void save(torch::serialize::OutputArchive& archive) const override;
  /// Reads what this or LibTorch's optimizer wrote, on any number of ranks. The same archive on
  /// every rank. Throws InvalidArgument before anything is changed if it does not fit. Local,
  /// unless frozen parameters have a state.
  void load(torch::serialize::InputArchive& archive) override;

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
  ShardedOptimizer::Group planned_group(size_t index) const;
  void take_new_groups();
  void prepare_step();
  void plan_frozen(const std::vector<std::vector<WholeState>>& states);
  void forget_consolidated();
  void save_steps(torch::serialize::OutputArchive& archive) const;

  std::unique_ptr<ShardedOptimizer> engine_;
  std::unique_ptr<ShardUpdate> update_;
  std::vector<std::vector<at::Tensor>> known_groups_;  ///< that engine_ has
  /// On the rank that state_ was brought to; by group and parameter, undefined where none is.
  std::vector<std::vector<at::Tensor>> masters_;
  bool is_consolidated_ = false;
};

}  // namespace farandole
