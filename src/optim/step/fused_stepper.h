// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <vector>

#include "optim/step/shard_stepper.h"

namespace farandole {

/// SGD, Adam, AdamW, LAMB and LARS in one pass: see step_pass.h.
class FusedStepper final : public ShardStepper {
 public:
  /// `groups` live as long as this; update_rule_of() knows their options.
  FusedStepper(ShardedOptimizer& engine, const Groups& groups);

  void read() override;
  void step() override { engine_.step(rules_); }
  void prepare_group() override {}
  void add_group() override {}
  void rebuild(const Group& group) override;
  int64_t state_bytes() const override { return engine_.state_bytes(); }
  FullStates gather(int to) override;
  std::vector<OwnedState> owned() override;
  void load(const SavedStates& states) override;
  const StateFormat& format() const override { return *state_format_of(groups_.front().options()); }

 private:
  std::vector<FullState> gather_group(size_t group, int to);
  std::vector<StateOutline> outlines(size_t group) const;
  void load_group(size_t group, const SavedStates& states);
  std::vector<std::string> field_names() const;

  ShardedOptimizer& engine_;
  const Groups& groups_;
  UpdateRules rules_;
};

}  // namespace farandole
