// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "farandole/comm/types.h"

namespace farandole::test {

/// A buffer of any dtype that tests fill with and read as small whole numbers. Values, sums and
/// products are exact in bfloat16 and, reduced modulo 256 where they do not fit, in int8 alike.
class TypedData {
 public:
  TypedData(comm::DataType dtype, size_t count);

  void* data() { return bytes_.data() + kMisalignment; }
  const void* data() const { return bytes_.data() + kMisalignment; }
  /// Where element `index` begins.
  void* at(size_t index);
  size_t count() const { return count_; }
  void set(size_t index, int64_t value);
  double get(size_t index) const;

 private:
  static constexpr size_t kMisalignment = 8;  ///< off the cache line, aligned for every dtype
  comm::DataType dtype_;
  size_t count_;
  std::vector<unsigned char> bytes_;
};

/// What `rank` contributes at `index`: a whole number from 0 to 7 (bool: 0 or 1).
int64_t contribution(int rank, size_t index, comm::DataType dtype);

/// The reduction of contribution(r, index) over all ranks, computed in the plainest way in double
/// or int64, then cut to the dtype as its arithmetic does.
double expected_reduction(int world_size, size_t index, comm::DataType dtype, comm::ReduceOp op);

/// Whether the dtype can be reduced so.
bool has_reduction(comm::DataType dtype, comm::ReduceOp op);

/// All dtypes and all reductions.
const std::vector<comm::DataType>& all_dtypes();
const std::vector<comm::ReduceOp>& all_reduce_ops();

}  // namespace farandole::test
