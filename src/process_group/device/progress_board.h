// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "farandole/comm/communicator.h"
#include "process_group/call.h"

namespace farandole {

/// What each rank has called on its device, in memory that all ranks map: so who waits for too long
/// can name the ranks that have not come, or called something else.
///
/// It knows the last 64 collectives of each rank. Without shared memory it knows nothing.
/// Threads: note() by one at a time; all else by any.
class ProgressBoard {
 public:
  /// Why a collective does not end, and the ranks at fault.
  struct Finding {
    std::string why;
    std::vector<int> ranks;
  };

  /// Collective on `host`, which must outlive the constructor alone.
  explicit ProgressBoard(comm::Communicator& host);

  /// This rank calls collective `sequence`.
  void note(uint64_t sequence, const Call& call);
  /// Of a collective that this rank has called and that does not end.
  Finding explain(uint64_t sequence) const;

 private:
  struct Entry;
  const Entry* entries_of(int rank) const;

  const int rank_;
  const int world_size_;
  std::shared_ptr<comm::SymmetricMemory> memory_;  ///< null: the ranks share none
};

}  // namespace farandole
