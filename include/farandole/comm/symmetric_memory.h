// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "farandole/export.h"

namespace farandole::comm {

/// One allocation that every rank of a group made together: `bytes()` on each rank, all of them
/// readable and writable by every rank. Collectives on buffers inside it copy nothing in or out.
///
/// Lifetime: releasing is local. A peer's mapping keeps the pages alive until it lets go too; later
/// collectives on such a buffer take the staged path.
/// Threads: const and safe from any thread; what the memory holds is the caller's to order.
class FARANDOLE_API SymmetricMemory {
 public:
  virtual ~SymmetricMemory();
  /// Which allocation of its group it is, the same on every rank; never used again.
  virtual uint64_t number() const = 0;
  virtual size_t bytes() const = 0;        ///< as asked for, the same on every rank
  virtual void* local() const = 0;         ///< this rank's buffer, aligned to a page
  virtual void* peer(int rank) const = 0;  ///< where this process sees the buffer of `rank`
};

}  // namespace farandole::comm
