// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "farandole/optim/sharded_optimizer.h"
#include "optim/state/saved_states.h"
#include "optim/state/state_format.h"

namespace farandole {

/// The optimizer state of a whole parameter, as checkpoints have it.
struct FullState {
  std::unique_ptr<torch::optim::OptimizerParamState> state;  ///< null if there is none
  at::Tensor master;  ///< float32 values of a parameter of a half type; undefined for others
  /// That the parameter has taken, if the checkpoint tells beside `state`.
  std::optional<int64_t> steps = {};
};

/// By group and parameter.
using FullStates = std::vector<std::vector<FullState>>;

/// The state of a parameter without the elements of its tensors; the same on all ranks.
struct StateOutline {
  bool exists = false;
  int64_t step = 0;
  std::vector<std::optional<at::ScalarType>> dtypes;  ///< by field; none where there is no tensor
};

/// Whole states out of what each rank has by piece, on rank `to` (-1: on all), else empty.
/// `outlines`: by parameter of `group`. `piece_of(field, i)`: the elements of the i-th piece of
/// this rank, undefined where it has none. Collective.
std::vector<FullState> gather_states(
    const ShardedOptimizer& engine, const StateFormat& format, size_t group,
    const std::vector<StateOutline>& outlines,
    const std::function<at::Tensor(size_t field, size_t piece)>& piece_of, int to);

/// Adds the float32 values of parameters of half types that have been stepped. Collective.
void gather_masters(const ShardedOptimizer& engine, size_t group,
                    const std::vector<at::Tensor>& parameters, std::vector<FullState>& states,
                    int to);
/// Those of this rank's pieces; undefined if there are none. Local.
std::vector<at::Tensor> masters_of(const ShardedOptimizer& engine, size_t group,
                                   const std::vector<at::Tensor>& parameters);
/// Takes this rank's part of what was saved, or else of the parameters. Local.
void load_masters(const ShardedOptimizer& engine, size_t group,
                  const std::vector<at::Tensor>& parameters, const SavedStates& states);

/// Throws InvalidArgument unless the loaded states have the shapes of the parameters of `groups`,
/// and what the rules of its options need.
void check_states(const FullStates& states, const StateFormat& format,
                  const StateFormat::Groups& groups);

/// Whole states, as a rank takes its pieces of them.
class WholeStates final : public SavedStates {
 public:
  /// All outlive this.
  WholeStates(const FullStates& states, const StateFormat& format,
              const StateFormat::Groups& groups)
      : states_(states), format_(format), groups_(groups) {}

  Outline outline(size_t group, size_t parameter) const override;
  std::optional<at::ScalarType> dtype(size_t group, size_t parameter,
                                      const std::string& name) const override;
  bool copy_part(size_t group, const ShardedOptimizer::Piece& piece, const std::string& name,
                 const at::Tensor& into) const override;

 private:
  /// Undefined if there is none.
  at::Tensor whole(size_t group, size_t parameter, const std::string& name) const;

  const FullStates& states_;
  const StateFormat& format_;
  const StateFormat::Groups& groups_;
};

/// The elements of `value`, of the parameter's shape, that belong to `piece`: one dimension.
at::Tensor part_of(const at::Tensor& value, const at::Tensor& parameter,
                   const ShardedOptimizer::Piece& piece);

}  // namespace farandole
