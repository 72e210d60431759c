// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/comm/types.h"
#include "farandole/optim/update_rule.h"
#include "optim/stochastic_rounding.h"

namespace farandole {

/// What a rule may ask for: UpdateRule::sums().
inline constexpr size_t kMostSums = 4;

/// Something done to an averaged gradient before it is used.
struct GradientChange {
  enum class Kind { kScale, kClamp };
  Kind kind;
  double value;  ///< a factor, or the largest absolute value
};

/// The gradient of a piece: sum(sources) / divisor, and then `changes` one after the other.
struct GradientSource {
  comm::DataType dtype;        ///< of the sources
  const void* const* sources;  ///< in rank order, at the piece's first element
  size_t count;
  double divisor;
  const std::vector<GradientChange>* changes;
};

/// How a piece of a bfloat16 parameter without float32 values is rounded, if not to nearest.
struct StochasticRounding {
  RoundingKey key;
  uint64_t first_element;  ///< of the piece, in the parameter
};

/// A piece of a parameter with all that belongs to it; addresses are those of its first element.
struct PieceUpdate {
  comm::DataType dtype;  ///< of the parameter; complex numbers are pairs of reals
  int64_t elements;      ///< reals
  GradientSource gradient;
  std::byte* parameter;
  std::byte* const* peers;  ///< the same piece in the memory of other ranks
  size_t peer_count;
  /// float32 values of a parameter of a half type. What the parameter has been set to from outside
  /// since it was rounded from them is taken over. Null for others, and where it has none: then it
  /// is computed in float32 and rounded in each step.
  float* master;
  std::optional<StochasticRounding> rounding;
  std::byte* const* states;  ///< those of the rule: of float64 for a float64 parameter, else of
                             ///< float32
  size_t state_count;
  const UpdateRule* rule;
  UpdateMoment moment;
  double* sums;  ///< where measure() adds up; null if rule->sums() == 0
};

/// Goes over pieces block by block, so that what one pass over memory brings into the cache is used
/// there for everything: a block of gradients is averaged from all ranks' memory, the block of the
/// parameter updated, and the result stored into all ranks. Bytes moved for each float32 element
/// and AdamW: 12 + 4 * sources read, 12 + 4 * peers written.
///
/// Blocks are shared out to torch's threads (at::set_num_threads); no bit depends on how many, nor
/// on where pieces begin. Threads: one call at a time.
class UpdatePass {
 public:
  /// Calls rule->measure() on every element and adds up, block after block.
  void measure(const std::vector<PieceUpdate>& pieces);
  /// Calls rule->update() on every element, and stores.
  void update(const std::vector<PieceUpdate>& pieces);
  /// Writes the gradients to `to`, in the type that rules compute in, and takes master values over.
  void collect(const std::vector<PieceUpdate>& pieces, const std::vector<void*>& to);
  /// Stores into all ranks what is in the parameters, or their master values. Changes no parameter
  /// that has none.
  void store(const std::vector<PieceUpdate>& pieces);
  /// Whether all sources of the gradients are finite, and sums of `terms` of them: see
  /// comm/finite_kernels.h.
  bool are_gradients_finite(const std::vector<PieceUpdate>& pieces, size_t terms);
  /// What the gradients add to their norm: see norm_loops.h.
  double norm_term_of_gradients(const std::vector<PieceUpdate>& pieces, double power);

 private:
  struct Block {
    size_t piece;
    int64_t begin;
    int64_t elements;
  };
  void cut(const std::vector<PieceUpdate>& pieces);

  std::vector<Block> blocks_;
  std::vector<double> sums_;  ///< of each block
};

}  // namespace farandole
