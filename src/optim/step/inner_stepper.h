// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "optim/step/shard_stepper.h"

namespace farandole {

/// Any torch::optim::Optimizer, of shards as tensors of one dimension or as whole parameters.
class InnerStepper final : public ShardStepper {
 public:
  using Factory = std::function<std::unique_ptr<torch::optim::Optimizer>(Groups)>;

  /// `groups` live as long as this. Throws InvalidArgument or NotSupported for what `make` makes.
  InnerStepper(ShardedOptimizer& engine, const Groups& groups, Factory make);

  void read() override;
  void step() override;
  void prepare_group() override;
  void add_group() override;
  void rebuild(const Group& group) override;
  int64_t state_bytes() const override;
  FullStates gather(int to) override;
  std::vector<OwnedState> owned() override;
  void load(const SavedStates& states) override;
  const StateFormat& format() const override;

 private:
  using State = torch::optim::OptimizerParamState;

  std::unique_ptr<torch::optim::Optimizer> make_on_shards();
  void take_new_shards(torch::optim::Optimizer& fresh);
  void catch_up();
  bool has_stepped() const;
  State* state_of(const at::Tensor& shard) const;
  std::string own_outlines() const;
  std::vector<std::vector<StateOutline>> common_outlines() const;
  void put_states(torch::optim::Optimizer& optimizer, const SavedStates& states) const;

  ShardedOptimizer& engine_;
  const Groups& groups_;
  const Factory make_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<torch::optim::Optimizer> prepared_;  ///< has the last group too
  bool is_behind_ = false;     ///< engine_ may have shards that optimizer_ does not have
  const StateFormat* format_;  ///< null if nobody knows
  std::string description_;
};

}  // namespace farandole
