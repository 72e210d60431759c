// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "farandole/comm/types.h"

namespace farandole::test {

/// Elements of any dtype that tests write and compare bit by bit. Values are small whole numbers
/// whose sums and products over four ranks are exact in bfloat16; int8 holds them modulo 256.
///
/// They repeat after kPeriod elements, a prime, so that a chunk or shard that is lost, doubled or
/// swapped with its neighbour does not go unnoticed.
///
/// Threads: const after construction.
class Pattern {
 public:
  static constexpr size_t kPeriod = 97;

  /// What `rank` contributes to a collective.
  static Pattern of_rank(int rank, comm::DataType dtype);
  /// The reduction of what ranks 0 to world_size - 1 contribute, computed in the plainest way.
  static Pattern of_reduction(int world_size, comm::DataType dtype, comm::ReduceOp op);

  /// Elements [offset, offset + count) to `to`, of any alignment.
  void write(void* to, size_t offset, size_t count) const;
  /// The first of `count` elements at `from` that is not as [offset, offset + count) says; `count`
  /// if there is none.
  size_t first_difference(const void* from, size_t offset, size_t count) const;

 private:
  Pattern(comm::DataType dtype, const std::function<double(size_t)>& value);

  size_t element_bytes_;
  std::vector<unsigned char> bytes_;  ///< one period
};

/// Whether the dtype can be reduced so.
bool has_reduction(comm::DataType dtype, comm::ReduceOp op);

/// All dtypes and all reductions.
const std::vector<comm::DataType>& all_dtypes();
const std::vector<comm::ReduceOp>& all_reduce_ops();

}  // namespace farandole::test
