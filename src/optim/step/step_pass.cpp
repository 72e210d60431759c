// SPDX-License-Identifier: Apache-2.0
#include "optim/step/step_pass.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#include "kernels/finite_kernels.h"
#include "kernels/half_kernels.h"
#include "kernels/move_kernels.h"
#include "kernels/norm_kernels.h"
#include "kernels/reduce_kernels.h"
#include "kernels/streaming_copy.h"
#include "optim/step/most_sums.h"
#include "optim/step/parallel.h"

namespace farandole {
namespace {

using comm::DataType;

/// Elements of a block: few enough for its parameter, gradient and state to stay in the first-level
/// cache.
constexpr int64_t kBlock = 1024;
/// Blocks that are worth waking a thread for.
constexpr int64_t kBlocksPerThread = 32;
constexpr size_t kCacheLineBytes = 64;
/// Bytes stored into a peer from which on the caches evict the first ones before the peer reads
/// them.
constexpr int64_t kStreamedBytes = 16 << 20;

template <class T>
constexpr DataType kDataTypeOf =
    std::is_same_v<T, double> ? DataType::kFloat64 : DataType::kFloat32;

void copy_cached(void* to, const void* from, size_t bytes) { std::memcpy(to, from, bytes); }

/// Bytes of the parameters.
int64_t bytes_of(const std::vector<StepPiece>& pieces) {
  int64_t bytes = 0;
  for (const StepPiece& piece : pieces) {
    bytes += piece.elements * static_cast<int64_t>(comm::size_of(piece.dtype));
  }
  return bytes;
}

/// A block while it is processed. T: the type that it is computed in.
template <class T>
class PieceBlock {
 public:
  PieceBlock(const StepPiece& piece, int64_t begin, int64_t elements)
      : piece_(piece),
        begin_(static_cast<size_t>(begin)),
        count_(static_cast<size_t>(elements)),
        is_half_(piece.dtype != kDataTypeOf<T>) {}

  void measure(double* sums) {
    take_over();
    piece_.rule->measure(block(gradient()), piece_.context, sums);
  }

  void update(bool streams) {
    take_over();
    piece_.rule->update(block(gradient()), piece_.context);
    if (is_half_) round();
    send(streams);
  }

  void collect(void* to) {
    take_over();
    std::memcpy(static_cast<T*>(to) + begin_, gradient(), count_ * sizeof(T));
  }

  double norm_term_of_gradient(double power) {
    return norm_term(gradient(), static_cast<int64_t>(count_), power);
  }

  /// `streams`: stores bypass the caches.
  void store(bool streams) {
    if (piece_.master != nullptr) round();
    send(streams);
  }

 private:
  /// Rounds the computed values to a parameter of a half type.
  void round() {
    if constexpr (std::is_same_v<T, float>) {
      if (const auto& by = piece_.rounding) {
        return round_stochastically(wide(), reinterpret_cast<uint16_t*>(own()), count_, by->key,
                                    by->first_element + begin_);
      }
    }
    move_kernel(kDataTypeOf<T>, piece_.dtype, false, false)(wide(), own(), count_, 1);
  }

  void send(bool streams) {
    for (size_t peer = 0; peer < piece_.peer_count; ++peer) {
      const auto copy = streams ? streaming_copy : copy_cached;
      copy(piece_.peers[peer] + begin_ * element_bytes(), own(), count_ * element_bytes());
    }
  }

  size_t element_bytes() const { return comm::size_of(piece_.dtype); }

  /// The averaged gradient of the block; read in place if it needs no change.
  const T* gradient() {
    const GradientSource& source = piece_.gradient;
    const bool is_plain = source.count == 1 && source.divisor == 1;
    const bool is_wide = source.dtype == kDataTypeOf<T>;
    const size_t offset = begin_ * comm::size_of(source.dtype);
    if (is_plain && is_wide && source.changes->empty()) {
      return reinterpret_cast<const T*>(static_cast<const std::byte*>(source.sources[0]) + offset);
    }
    c10::SmallVector<const void*, 64> blocks;
    for (size_t i = 0; i < source.count; ++i) {
      blocks.push_back(static_cast<const std::byte*>(source.sources[i]) + offset);
    }
    const void* average = blocks[0];
    auto change = source.changes->begin();
    if (!is_plain) {
      double divisor = source.divisor;
      // A division and a multiplication by a power of two may be joined: no bit of a normal number
      // depends on their order.
      const bool joins = is_wide && change != source.changes->end() && is_power_of_two(*change);
      if (joins) divisor /= (change++)->value;
      // Averages of half types are rounded, as the result of an all_reduce is.
      void* to = is_wide ? static_cast<void*>(gradient_) : halves_;
      comm::average({blocks.data(), blocks.size()}, {&to, 1}, count_, source.dtype, divisor);
      average = to;
    }
    if (average != gradient_) {
      const bool scales = change != source.changes->end() && is_scale(*change);
      const double scale = scales ? (change++)->value : 1;
      move_kernel(source.dtype, kDataTypeOf<T>, false, false)(average, gradient_, count_, scale);
    }
    for (; change != source.changes->end(); ++change) apply(*change);
    return gradient_;
  }

  static bool is_scale(const GradientChange& change) {
    return change.kind == GradientChange::Kind::kScale;
  }

  static bool is_power_of_two(const GradientChange& change) {
    int exponent = 0;
    return is_scale(change) && std::frexp(change.value, &exponent) == 0.5;
  }

  void apply(const GradientChange& change) {
    if (change.kind != GradientChange::Kind::kClamp) {
      const double factor = is_scale(change) ? change.value : change.factor.item<double>();
      move_kernel(kDataTypeOf<T>, kDataTypeOf<T>, false, false)(gradient_, gradient_, count_,
                                                                factor);
      return;
    }
    const auto most = static_cast<T>(change.value);
    for (size_t i = 0; i < count_; ++i) {
      gradient_[i] = gradient_[i] > most ? most : gradient_[i] < -most ? -most : gradient_[i];
    }
  }

  std::byte* own() const { return piece_.parameter + begin_ * element_bytes(); }

  /// Elements of a parameter of a half type, in the type that they are computed in.
  T* wide() {
    if constexpr (std::is_same_v<T, float>) {
      if (piece_.master != nullptr) return piece_.master + begin_;
    }
    return wide_;
  }

  void take_over() {
    if (!is_half_) return;
    if (piece_.master == nullptr) {
      move_kernel(piece_.dtype, kDataTypeOf<T>, false, false)(own(), wide_, count_, 1);
    } else {
      refresh_masters(reinterpret_cast<const uint16_t*>(own()), piece_.master + begin_, count_,
                      piece_.dtype);
    }
  }

  UpdateBlock<T> block(const T* gradient) {
    states_.clear();
    for (size_t i = 0; i < piece_.state_count; ++i) {
      states_.push_back(reinterpret_cast<T*>(piece_.states[i]) + begin_);
    }
    T* const parameter = is_half_ ? wide() : reinterpret_cast<T*>(own());
    return {parameter, gradient, states_.data(), static_cast<int64_t>(count_)};
  }

  const StepPiece& piece_;
  const size_t begin_;
  const size_t count_;
  const bool is_half_;
  c10::SmallVector<T*, 4> states_;
  alignas(64) T gradient_[kBlock];
  alignas(64) T wide_[kBlock];
  alignas(64) uint16_t halves_[kBlock];
};

/// Calls `function` with the block in the type that it is computed in.
template <class Function>
auto with_block(const StepPiece& piece, int64_t begin, int64_t elements, const Function& function) {
  if (piece.dtype == DataType::kFloat64) {
    PieceBlock<double> block(piece, begin, elements);
    return function(block);
  }
  PieceBlock<float> block(piece, begin, elements);
  return function(block);
}

/// Calls function(index) for each block, on torch's threads.
template <class Function>
void for_each(size_t count, const Function& function) {
  run_parallel(static_cast<int64_t>(count), kBlocksPerThread, [&](int64_t begin, int64_t end) {
    for (int64_t index = begin; index < end; ++index) function(static_cast<size_t>(index));
    end_streaming_copies();
  });
}

}  // namespace

void StepPass::cut(const std::vector<StepPiece>& pieces) {
  blocks_.clear();
  for (size_t piece = 0; piece < pieces.size(); ++piece) {
    const StepPiece& update = pieces[piece];
    // Every block except the first one begins at a cache line of the parameter.
    const size_t misplaced = reinterpret_cast<uintptr_t>(update.parameter) % kCacheLineBytes;
    int64_t most = kBlock - static_cast<int64_t>(misplaced / comm::size_of(update.dtype));
    for (int64_t begin = 0; begin < update.elements; begin += std::exchange(most, kBlock)) {
      blocks_.push_back({piece, begin, std::min(most, update.elements - begin)});
    }
  }
}

void StepPass::measure(const std::vector<StepPiece>& pieces) {
  cut(pieces);
  sums_.assign(blocks_.size() * kMostSums, 0);
  for_each(blocks_.size(), [&](size_t index) {
    const Block& block = blocks_[index];
    if (pieces[block.piece].sums == nullptr) return;
    with_block(pieces[block.piece], block.begin, block.elements,
               [&](auto& update) { update.measure(&sums_[index * kMostSums]); });
  });
  for (size_t index = 0; index < blocks_.size(); ++index) {
    const StepPiece& piece = pieces[blocks_[index].piece];
    if (piece.sums == nullptr) continue;
    for (int i = 0; i < piece.rule->sums(); ++i) {
      piece.sums[i] += sums_[index * kMostSums + static_cast<size_t>(i)];
    }
  }
}

void StepPass::update(const std::vector<StepPiece>& pieces) {
  cut(pieces);
  const bool streams = bytes_of(pieces) >= kStreamedBytes;
  for_each(blocks_.size(), [&](size_t index) {
    const Block& block = blocks_[index];
    with_block(pieces[block.piece], block.begin, block.elements,
               [streams](auto& update) { update.update(streams); });
  });
}

void StepPass::collect(const std::vector<StepPiece>& pieces, const std::vector<void*>& to) {
  cut(pieces);
  for_each(blocks_.size(), [&](size_t index) {
    const Block& block = blocks_[index];
    with_block(pieces[block.piece], block.begin, block.elements,
               [&](auto& update) { update.collect(to[block.piece]); });
  });
}

void StepPass::store(const std::vector<StepPiece>& pieces) {
  cut(pieces);
  const bool streams = bytes_of(pieces) >= kStreamedBytes;
  for_each(blocks_.size(), [&](size_t index) {
    const Block& block = blocks_[index];
    with_block(pieces[block.piece], block.begin, block.elements,
               [streams](auto& update) { update.store(streams); });
  });
}

bool StepPass::are_gradients_finite(const std::vector<StepPiece>& pieces, size_t terms) {
  cut(pieces);
  std::atomic<bool> all{true};
  for_each(blocks_.size(), [&](size_t index) {
    const Block& block = blocks_[index];
    const StepPiece& piece = pieces[block.piece];
    const DataType dtype = piece.gradient.dtype;
    const size_t offset = static_cast<size_t>(block.begin) * comm::size_of(dtype);
    for (size_t i = 0; i < piece.gradient.count; ++i) {
      const auto* const source = static_cast<const std::byte*>(piece.gradient.sources[i]) + offset;
      if (comm::are_finite(source, static_cast<size_t>(block.elements), dtype, terms)) continue;
      all.store(false, std::memory_order_relaxed);
    }
  });
  return all;
}

double StepPass::norm_term_of_gradients(const std::vector<StepPiece>& pieces, double power) {
  cut(pieces);
  sums_.assign(blocks_.size(), 0);
  for_each(blocks_.size(), [&](size_t index) {
    const Block& block = blocks_[index];
    sums_[index] = with_block(pieces[block.piece], block.begin, block.elements,
                              [&](auto& update) { return update.norm_term_of_gradient(power); });
  });
  double result = 0;
  for (const double sum : sums_) result = joined_terms(result, sum, power);
  return result;
}

}  // namespace farandole
