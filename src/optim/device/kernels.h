// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/half_types.h"
#include "kernels/target_clones.h"
#include "optim/device/formulas.h"
#include "optim/device/kernel_arguments.h"
#include "optim/step/rounding_bits.h"

// What each thread of the kernels does. Compiled for GPUs (cuda/update_kernels.cu) and, with the
// same bits, for the host, where tests run it.

/// function(kernel, number type) for every kernel that updates, and for every one that measures.
#define FARANDOLE_UPDATE_KERNELS(function)                                                \
  function(Adam, float) function(Adam, double) function(Sgd, float) function(Sgd, double) \
      function(Lars, float) function(Lars, double) function(Lamb, float) function(Lamb, double)
#define FARANDOLE_MEASURE_KERNELS(function) \
  function(Lars, float) function(Lars, double) function(Lamb, float) function(Lamb, double)

// Loops over what is in registers.
#ifdef __CUDACC__
#define FARANDOLE_UNROLL _Pragma("unroll")
#else
#define FARANDOLE_UNROLL
#endif

namespace farandole {

/// Elements that a thread loads before it stores the first one: so many loads travel at once.
constexpr int kKernelUnroll = 4;

FARANDOLE_INLINE float wide_half(uint16_t bits, comm::DataType dtype) {
  return dtype == comm::DataType::kBFloat16 ? static_cast<float>(comm::BFloat16{bits})
                                            : static_cast<float>(comm::Float16{bits});
}

/// An element as it lies in memory. Loads and conversions are apart, so that many loads travel
/// before a conversion waits for one.
template <class T>
using Stored = std::conditional_t<std::is_same_v<T, double>, double, uint32_t>;

template <class T>
FARANDOLE_INLINE Stored<T> load_stored(const void* values, comm::DataType dtype, int64_t i) {
  if constexpr (std::is_same_v<T, double>) {
    return static_cast<const double*>(values)[i];
  } else {
    if (dtype == comm::DataType::kFloat32) return static_cast<const uint32_t*>(values)[i];
    return static_cast<const uint16_t*>(values)[i];
  }
}

template <class T>
FARANDOLE_INLINE T number_of(Stored<T> stored, comm::DataType dtype) {
  if constexpr (std::is_same_v<T, double>) {
    return stored;
  } else {
    if (dtype == comm::DataType::kFloat32) return comm::float_of_bits(stored);
    return wide_half(static_cast<uint16_t>(stored), dtype);
  }
}

FARANDOLE_INLINE uint16_t rounded_half(float value, comm::DataType dtype) {
  return dtype == comm::DataType::kBFloat16 ? comm::BFloat16::from(value).bits
                                            : comm::Float16::from(value).bits;
}

FARANDOLE_INLINE bool is_half(comm::DataType dtype) {
  return dtype == comm::DataType::kBFloat16 || dtype == comm::DataType::kFloat16;
}

/// The piece that a block of threads works on.
FARANDOLE_INLINE int piece_of(const KernelTable& table, int block) {
  int low = 0;
  int high = table.pieces - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (table.first_block[middle] <= block) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

/// The average as the rule gets it. Averages of half types are rounded, as the result of an
/// all_reduce is.
template <class T>
FARANDOLE_INLINE T changed_gradient(const KernelTable& table, T sum) {
  T gradient = sum;
  if (table.divisor != 1) {
    gradient = sum / static_cast<T>(table.divisor);
    if constexpr (std::is_same_v<T, float>) {
      if (is_half(table.gradient_dtype)) {
        gradient = wide_half(rounded_half(gradient, table.gradient_dtype), table.gradient_dtype);
      }
    }
  }
  for (int i = 0; i < table.changes; ++i) {
    const KernelChange& change = table.change[i];
    const auto value = static_cast<T>(change.factor != nullptr ? *change.factor : change.value);
    if (!change.clamps) {
      gradient *= value;
    } else {  // NaN stays
      gradient = gradient > value ? value : gradient < -value ? -value : gradient;
    }
  }
  return gradient;
}

template <class T>
FARANDOLE_INLINE void store_parameter(const KernelTable& table, const KernelPiece& piece, int64_t i,
                                      T value) {
  if constexpr (std::is_same_v<T, float>) {
    if (piece.master != nullptr) piece.master[i] = value;
    if (is_half(table.parameter_dtype)) {
      uint16_t half = 0;
      if (table.rounds_stochastically) {
        const uint64_t index = piece.first_element + static_cast<uint64_t>(i);
        half = stochastic_bfloat16(value, static_cast<uint32_t>(index) + piece.key.first,
                                   piece.key.second ^ mix_bits(static_cast<uint32_t>(index >> 32)));
      } else {
        half = rounded_half(value, table.parameter_dtype);
      }
      static_cast<uint16_t*>(piece.parameter)[i] = half;
      return;
    }
  }
  static_cast<T*>(piece.parameter)[i] = value;
}

/// Some elements of a thread.
template <class T>
struct KernelElements {
  Stored<T> parameter[kKernelUnroll];
  float master[kKernelUnroll];
  Stored<T> gradient[kKernelUnroll];
  T states[kKernelUnroll][kKernelStates];

  /// Those at first, first + kKernelThreads, ... before `end`.
  FARANDOLE_INLINE void load(const KernelTable& table, const KernelPiece& piece, int64_t first,
                             int64_t end) {
    FARANDOLE_UNROLL
    for (int u = 0; u < kKernelUnroll; ++u) {
      const int64_t i = first + u * kKernelThreads;
      if (i >= end) continue;
      parameter[u] = load_stored<T>(piece.parameter, table.parameter_dtype, i);
      if (piece.master != nullptr) master[u] = piece.master[i];
      gradient[u] = load_stored<T>(piece.gradient, table.gradient_dtype, i);
      FARANDOLE_UNROLL
      for (int s = 0; s < static_cast<int>(kKernelStates); ++s) {
        if (s < table.states) states[u][s] = static_cast<const T*>(piece.states[s])[i];
      }
    }
  }

  /// The parameter as rules compute it. Where it is not its rounded master weight, somebody else
  /// has set it.
  FARANDOLE_INLINE T parameter_of(const KernelTable& table, const KernelPiece& piece, int u) const {
    const T stored = number_of<T>(parameter[u], table.parameter_dtype);
    if constexpr (std::is_same_v<T, float>) {
      if (piece.master == nullptr) return stored;
      return rounded_half(master[u], table.parameter_dtype) == parameter[u] ? master[u] : stored;
    }
    return stored;
  }

  FARANDOLE_INLINE T gradient_of(const KernelTable& table, int u) const {
    return changed_gradient(table, number_of<T>(gradient[u], table.gradient_dtype));
  }

  FARANDOLE_INLINE void store_states(const KernelTable& table, const KernelPiece& piece, int u,
                                     int64_t i) const {
    FARANDOLE_UNROLL
    for (int s = 0; s < static_cast<int>(kKernelStates); ++s) {
      if (s < table.states) static_cast<T*>(piece.states[s])[i] = states[u][s];
    }
  }
};

/// Where a block of threads begins and ends in its piece.
struct KernelRange {
  int64_t begin;
  int64_t end;

  FARANDOLE_INLINE static KernelRange of(const KernelTable& table, int piece, int block) {
    const int64_t begin = (block - table.first_block[piece]) * kKernelElements;
    const int64_t elements = table.piece[piece].elements;
    return {begin, begin + kKernelElements < elements ? begin + kKernelElements : elements};
  }
};

/// A thread of a kernel that updates parameters.
template <class Formula>
FARANDOLE_INLINE void update_elements(const KernelArguments<Formula>& arguments, int block,
                                      int thread) {
  using T = typename Formula::Number;
  const KernelTable& table = arguments.table;
  const int index = piece_of(table, block);
  const KernelPiece& piece = table.piece[index];
  const KernelRange range = KernelRange::of(table, index, block);
  const auto formula = arguments.formula.of(piece.sums);
  for (int64_t first = range.begin + thread; first < range.end;
       first += kKernelThreads * kKernelUnroll) {
    KernelElements<T> elements;
    elements.load(table, piece, first, range.end);
    FARANDOLE_UNROLL
    for (int u = 0; u < kKernelUnroll; ++u) {
      const int64_t i = first + u * kKernelThreads;
      if (i >= range.end) continue;
      T value = elements.parameter_of(table, piece, u);
      formula.update(value, elements.gradient_of(table, u), elements.states[u]);
      elements.store_states(table, piece, u, i);
      store_parameter(table, piece, i, value);
    }
  }
}

/// A thread of a kernel that measures: what its elements contribute, to `sums`.
template <class Formula>
FARANDOLE_INLINE void measure_elements(const KernelArguments<Formula>& arguments, int block,
                                       int thread, double* sums) {
  using T = typename Formula::Number;
  const KernelTable& table = arguments.table;
  const int index = piece_of(table, block);
  const KernelPiece& piece = table.piece[index];
  const KernelRange range = KernelRange::of(table, index, block);
  for (int64_t first = range.begin + thread; first < range.end;
       first += kKernelThreads * kKernelUnroll) {
    KernelElements<T> elements;
    elements.load(table, piece, first, range.end);
    FARANDOLE_UNROLL
    for (int u = 0; u < kKernelUnroll; ++u) {
      const int64_t i = first + u * kKernelThreads;
      if (i >= range.end) continue;
      arguments.formula.measure(elements.parameter_of(table, piece, u),
                                elements.gradient_of(table, u), elements.states[u], sums);
    }
  }
}

/// A thread of the kernel that adds up the partial sums of a piece: those of blocks `thread`,
/// thread + kKernelThreads, ...
FARANDOLE_INLINE void add_partial_sums(const KernelTable& table, int piece, int thread,
                                       double* sums) {
  for (int block = table.first_block[piece] + thread; block < table.first_block[piece + 1];
       block += kKernelThreads) {
    for (size_t sum = 0; sum < kKernelSums; ++sum) {
      sums[sum] += table.partial_sums[static_cast<size_t>(block) * kKernelSums + sum];
    }
  }
}

}  // namespace farandole
