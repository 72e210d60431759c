// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <vector>

#include "comm/mpi/entry.h"
#include "comm/mpi/reduction.h"

namespace farandole::comm::mpi {

/// MPI's collectives for buffers of any size, called when all ranks have entered with equal calls.
///
/// MPI counts in int. Whatever holds more than kMostBytes passes in pieces, the same on all ranks:
/// a piece of each block, which a type with the extent of a block picks out of the others. (MPI 4
/// has functions with large counts, which OpenMPI 5 lacks.)
///
/// The calls block in MPI, which spins. Nobody is late any more by then, and OpenMPI's non-blocking
/// ones took twice as long (4 MiB and 2 ranks in shared memory: 1.5 ms for 0.4 ms). A process that
/// ends meanwhile ends the job, or with ULFM the call.
///
/// Sizes are in bytes, of one block; buffers are as communicator.h says, in place too. Threads: one
/// call at a time.
class WideCollectives {
 public:
  /// `entry` outlives this.
  WideCollectives(const Entry& entry, MPI_Comm communicator, int rank, int world_size)
      : entry_(entry), communicator_(communicator), rank_(rank), world_size_(world_size) {}

  void all_reduce(const void* input, void* output, size_t count, const Reduction& reduction) const;
  void reduce(const void* input, void* output, size_t count, const Reduction& reduction,
              int root) const;
  void reduce_scatter(const void* input, void* output, size_t count,
                      const Reduction& reduction) const;
  void broadcast(void* buffer, size_t bytes, int root) const;
  void all_gather(const void* input, void* output, size_t bytes) const;
  void gather(const void* input, void* output, size_t bytes, int root) const;
  void scatter(const void* input, void* output, size_t bytes, int root) const;
  void all_to_all(const void* input, void* output, size_t bytes) const;
  /// Blocks in rank order without gaps. `is_huge`: the same on all ranks; whether some rank sends
  /// or receives more than kMostBytes.
  void all_to_all_v(const void* input, const std::vector<size_t>& sent, void* output,
                    const std::vector<size_t>& received, bool is_huge) const;
  /// Every rank's `bytes` in rank order; small.
  void share(const void* own, void* all, size_t bytes) const;

  static constexpr size_t kMostBytes = size_t{1} << 30;

 private:
  /// A piece of each block: begins at byte `offset` of it, and is `count` elements of `type`.
  using Piece = std::function<void(size_t offset, int count, MPI_Datatype type)>;
  void in_pieces(size_t block_bytes, const Piece& piece) const;
  void exchange_huge(const std::byte* input, const std::vector<size_t>& sent, std::byte* output,
                     const std::vector<size_t>& received) const;

  const Entry& entry_;
  MPI_Comm communicator_;
  int rank_;
  int world_size_;
};

}  // namespace farandole::comm::mpi
