// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "farandole/comm/bucket_reduction.h"
#include "farandole/comm/signals.h"
#include "farandole/comm/symmetric_memory.h"
#include "farandole/export.h"

namespace farandole::comm {

/// What the ranks of a group can do if they read and write each other's memory: a capability that
/// a backend may have (Communicator::shared_memory()).
///
/// Owner: the communicator. Errors, threads and order of collectives are those of communicator.h.
class FARANDOLE_API SharedMemory {
 public:
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  /// Allocates `bytes` of symmetric memory on every rank. Collective; throws SystemError on every
  /// rank if one cannot.
  virtual std::shared_ptr<SymmetricMemory> allocate_symmetric(size_t bytes) = 0;
  /// The allocation that holds [data, data + bytes) on this rank; null if none of this communicator
  /// does. Local; any thread.
  virtual std::shared_ptr<SymmetricMemory> find_symmetric(const void* data, size_t bytes) const = 0;
  /// Signals among the ranks, none sent yet. Collective; throws what allocate_symmetric() does.
  virtual std::shared_ptr<Signals> make_signals() = 0;
  /// A reduction of `buckets` of `memory`, an allocation of this communicator, that overlaps with
  /// computation. `report_bytes`: what each rank tells the others with every finish(). Collective;
  /// ranks pass the same. Throws what allocate_symmetric() does, and MismatchError if buckets
  /// differ.
  virtual std::shared_ptr<BucketReduction> make_bucket_reduction(
      std::shared_ptr<SymmetricMemory> memory, const std::vector<BucketRange>& buckets,
      size_t report_bytes) = 0;

 protected:
  SharedMemory() = default;
  virtual ~SharedMemory();
};

}  // namespace farandole::comm
