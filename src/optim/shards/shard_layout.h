// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "farandole/comm/fingerprint.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/optim/master_weight_options.h"
#include "farandole/optim/shard_plan.h"
#include "farandole/optim/sharded_optimizer.h"
#include "farandole/optim/update_rule.h"
#include "optim/shards/flat_parameters.h"
#include "optim/shards/shard_tensors.h"
#include "optim/state/shard_state.h"

namespace farandole {

/// The parameters of a sharded optimizer by group, who owns which elements of them, and the state
/// arrays of what this rank owns.
///
/// Threads: one call at a time.
class ShardLayout {
 public:
  static constexpr size_t kNone = static_cast<size_t>(-1);
  struct Parameter {
    at::Tensor tensor;
    std::string name;
    size_t group;
    size_t index;  ///< in its group
    /// Of parts(), and which parameter of that; kNone before it is planned.
    size_t part = kNone;
    size_t index_in_part = 0;
    int64_t steps = 0;
    bool has_state = false;  ///< a step has written to its arrays
  };
  /// Parameters that were planned together.
  struct Part {
    std::vector<size_t> parameters;  ///< indices into parameters()
    std::unique_ptr<FlatParameters> flat;
    std::unique_ptr<ShardState> state;
    std::unique_ptr<ShardTensors> tensors;  ///< null unless asked for
    bool has_masters = false;               ///< of parameters of half types
  };
  /// Everything that plan() makes.
  struct Plan {
    struct Index {
      size_t part;
      size_t in_part;
    };
    std::vector<Part> parts;
    std::vector<Index> indices;  ///< by parameter
  };

  ShardLayout(const MasterWeightOptions& master_weights, Partition partition)
      : master_weights_(master_weights), partition_(partition) {}

  const MasterWeightOptions& master_weights() const { return master_weights_; }
  Partition partition() const { return partition_; }

  /// Adds the parameters of one more group, not planned. If it throws, nothing has changed.
  void add_group(ShardedOptimizer::ParameterGroup group);
  /// Drops all behind the first `groups` and `parts`. Parameters stay where they are in memory.
  void drop(size_t groups, size_t parts) noexcept;
  size_t group_count() const { return groups_.size(); }
  /// Indices of the parameters of a group. Throws InvalidArgument if there is none.
  const std::vector<size_t>& group(size_t index) const;
  std::vector<Parameter>& parameters() { return parameters_; }
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  const std::vector<std::string>& names() const { return names_; }
  bool has_complex() const;
  /// Whether the parameters are on an accelerator; they are all on one device.
  bool is_on_accelerator() const { return !tensors_.empty() && !tensors_.front().is_cpu(); }
  /// Of what the ranks must have in common: everything but, unless asked for, the values.
  comm::Fingerprint fingerprint(bool with_values) const;

  /// Parameters from `first` on that have requires_grad.
  std::vector<size_t> active(size_t first = 0) const;
  /// Parameters without a plan that have a gradient.
  std::vector<size_t> newly_trainable() const;
  /// Frozen parameters that have been stepped: no gradient of them travels, so they are planned
  /// apart.
  std::vector<size_t> frozen_with_state() const;
  /// Makes these parameters a part, divided among the ranks of `group`. Collective if there are
  /// any.
  void plan(const std::vector<size_t>& indices, const ReplicaGroup& group);
  /// Afterwards nothing is planned.
  Plan take_plan();
  void put_back(Plan plan) noexcept;
  std::vector<Part>& parts() { return parts_; }
  const std::vector<Part>& parts() const { return parts_; }
  /// Calls `call` with each piece of `group` that this rank owns, and its index in the part.
  void for_each_piece(
      size_t group, const std::function<void(const Part&, size_t, const ShardPiece&)>& call) const;

  /// Makes state arrays, float32 master weights, and tensors of pieces where there are none.
  void make_state(const UpdateRules& rules);
  void make_masters();
  static void make_masters(Part& part);
  void make_shard_tensors();

 private:
  std::vector<int64_t> loads(int world_size) const;

  const MasterWeightOptions master_weights_;
  const Partition partition_;
  std::vector<Parameter> parameters_;
  std::vector<at::Tensor> tensors_;          ///< of the same
  std::vector<std::string> names_;           ///< likewise
  std::vector<std::vector<size_t>> groups_;  ///< indices into parameters_, by parameter group
  std::vector<Part> parts_;
};

}  // namespace farandole
