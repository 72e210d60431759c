// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>

#include "farandole/optim/sharded_optimizer.h"
#include "optim/state/full_state.h"
#include "optim/state/owned_state.h"
#include "optim/state/saved_states.h"

namespace farandole {

/// How a ZeroRedundancyOptimizer steps this rank's shards. Options are those of its groups.
/// Threads: one at a time.
class ShardStepper {
 public:
  using Groups = std::vector<torch::optim::OptimizerParamGroup>;

  virtual ~ShardStepper();
  /// Reads the current options. Local.
  virtual void read() = 0;
  /// Updates the shards and stores them on all ranks. Collective.
  virtual void step() = 0;
  /// Prepares the last group; if it fails, nothing has changed. Local.
  virtual void prepare_group() = 0;
  /// Adds the last group, which is prepared. Local.
  virtual void add_group() = 0;
  /// Makes new shards over other ranks. Collective.
  virtual void rebuild(const Group& group) = 0;
  /// Of this rank.
  virtual int64_t state_bytes() const = 0;
  /// States of whole parameters on rank `to` (-1: all), empty elsewhere. Collective.
  virtual FullStates gather(int to) = 0;
  /// What this rank has of parameters that have been stepped. Local.
  virtual std::vector<OwnedState> owned() = 0;
  /// Takes this rank's part of states that were checked. Local.
  virtual void load(const SavedStates& states) = 0;
  /// The format of saved states. Throws NotSupported for unknown optimizers.
  virtual const StateFormat& format() const = 0;
};

/// The text of the exception that is being handled, for the other ranks.
std::string text_of_exception();

}  // namespace farandole
