// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "farandole/comm/types.h"
#include "optim/step/stochastic_rounding.h"

namespace farandole {

constexpr int kKernelThreads = 256;  ///< of a block of threads
/// Elements that a block of threads works on.
constexpr int64_t kKernelElements = 4096;
constexpr size_t kKernelStates = 3;
constexpr size_t kKernelSums = 2;
constexpr size_t kKernelChanges = 4;
constexpr size_t kKernelPieces = 40;
/// What every GPU and driver takes as the arguments of a kernel.
constexpr size_t kKernelBytes = 4096;

/// A piece of a parameter on a device, as StepPiece; addresses are those of its first element.
struct KernelPiece {
  void* parameter;
  const void* gradient;  ///< null if the rule does not read it
  float* master;         ///< null if there is none
  void* states[kKernelStates];
  double* sums;  ///< of the whole parameter, of a layer-wise rule
  int64_t elements;
  uint64_t first_element;  ///< in the parameter, for stochastic rounding
  RoundingKey key;
};

/// A GradientChange.
struct KernelChange {
  bool clamps;           ///< to +-value, else times value
  double value;          ///< if there is no factor
  const double* factor;  ///< null, or a number on the device
};

/// Pieces that are alike, and what is to be done with them besides a formula.
struct KernelTable {
  comm::DataType parameter_dtype;
  comm::DataType gradient_dtype;
  bool rounds_stochastically;
  uint8_t states;
  uint8_t changes;
  int32_t pieces;
  double divisor;  ///< of gradients
  KernelChange change[kKernelChanges];
  double* partial_sums;  ///< kKernelSums of each block, while a layer-wise rule measures
  int32_t first_block[kKernelPieces + 1];  ///< of each piece, and their number
  KernelPiece piece[kKernelPieces];
};

/// The arguments of a kernel, which are passed by value.
template <class Formula>
struct KernelArguments {
  Formula formula;
  KernelTable table;
};

}  // namespace farandole
