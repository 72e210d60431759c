// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/comm/types.h"
#include "farandole/export.h"
#include "farandole/optim/update_rule.h"
#include "optim/step/gradient_change.h"
#include "optim/step/stochastic_rounding.h"

namespace farandole {

/// The gradient of a piece: sum(sources) / divisor, then `changes` in order.
struct GradientSource {
  comm::DataType dtype;        ///< of the sources
  const void* const* sources;  ///< in rank order, at the piece's first element
  size_t count;
  double divisor;
  const std::vector<GradientChange>* changes;
};

/// A piece of a parameter with its gradient and state; addresses are those of its first element.
struct StepPiece {
  comm::DataType dtype;  ///< of the parameter; complex numbers are pairs of reals
  int64_t elements;      ///< reals
  GradientSource gradient;
  std::byte* parameter;
  std::byte* const* peers;  ///< the same piece in the memory of other ranks
  size_t peer_count;
  /// float32 master weights of a parameter of a half type. If the parameter was changed from
  /// outside since it was rounded from them, they take its value. Null if there are none: then each
  /// step computes in float32 and rounds.
  float* master;
  std::optional<StochasticRounding> rounding;
  std::byte* const* states;  ///< of the rule: float64 for a float64 parameter, otherwise float32
  size_t state_count;
  const UpdateRule* rule;
  StepContext context;
  double* sums;  ///< where measure() adds its sums; null if rule->sums() == 0
};

/// Processes pieces block by block, so that one pass over memory is enough: while a block is in the
/// cache, its gradient is averaged from all ranks' memory, the parameter is updated, and the result
/// is stored into all ranks. Bytes moved for each float32 element and AdamW: 12 + 4 * sources read,
/// 12 + 4
/// * peers written.
///
/// Blocks are distributed to torch's threads (at::set_num_threads). No bit depends on the number of
/// threads, or on where pieces begin. Threads: one call at a time.
class FARANDOLE_API StepPass {
 public:
  /// Calls rule->measure() on every element and adds the sums in the order of the blocks.
  void measure(const std::vector<StepPiece>& pieces);
  /// Calls rule->update() on every element, and stores.
  void update(const std::vector<StepPiece>& pieces);
  /// Writes the gradients to `to`, in the type that rules compute in, and refreshes master weights.
  void collect(const std::vector<StepPiece>& pieces, const std::vector<void*>& to);
  /// Stores the parameters, or their rounded master weights, into all ranks.
  void store(const std::vector<StepPiece>& pieces);
  /// Whether all sources of the gradients are finite, and sums of `terms` of them: see
  /// kernels/finite_kernels.h.
  bool are_gradients_finite(const std::vector<StepPiece>& pieces, size_t terms);
  /// The sum that the gradients contribute to their norm: see norm_kernels.h.
  double norm_term_of_gradients(const std::vector<StepPiece>& pieces, double power);

 private:
  struct Block {
    size_t piece;
    int64_t begin;
    int64_t elements;
  };
  void cut(const std::vector<StepPiece>& pieces);

  std::vector<Block> blocks_;
  std::vector<double> sums_;  ///< of each block
};

}  // namespace farandole
