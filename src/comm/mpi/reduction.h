// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <cstddef>

#include "farandole/comm/types.h"

namespace farandole::comm::mpi {

/// How MPI combines the elements of a call: with its own types and operations where it has them,
/// else with ours (bfloat16 and float16; MIN and MAX of floats, where NaN wins).
///
/// MPI chooses in which order ranks are combined, so the bits of a sum may depend on the number of
/// ranks, the size and the MPI. Half types are added in float32 and rounded after each step,
/// because they travel as they are. Averages are sums that finish() divides at the end; those of
/// float16 are scaled by a power of two before (prepare()), so that no sum overflows where the
/// average does not.
///
/// Threads: const and safe from any thread.
class Reduction {
 public:
  Reduction(DataType dtype, ReduceOp op, int world_size);

  MPI_Datatype type() const { return type_; }
  MPI_Op operation() const { return operation_; }
  size_t element_bytes() const { return size_of(dtype_); }

  /// Whether inputs must pass through prepare().
  bool scales() const { return scale_ != 1; }
  /// prepared[i] = input[i] / scale; may be the same buffer.
  void prepare(const void* input, void* prepared, size_t count) const;
  /// Makes the result of what MPI has combined.
  void finish(void* result, size_t count) const;

 private:
  DataType dtype_;
  bool averages_;
  int world_size_;
  int scale_ = 1;
  MPI_Datatype type_;
  MPI_Op operation_;
};

}  // namespace farandole::comm::mpi
