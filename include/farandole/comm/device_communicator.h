// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Memory of a device that the library of a DeviceCommunicator knows, so that collectives of that
/// communicator copy less. It may be used on any stream.
///
/// Release waits for nobody: what was enqueued on this memory must be over.
class FARANDOLE_API DeviceMemory {
 public:
  virtual ~DeviceMemory();
  virtual void* data() const = 0;
  virtual size_t bytes() const = 0;
};

/// Collectives on the memory of accelerators, one device a rank: the one that was current in the
/// thread which made the communicator.
///
/// A call puts its operation on CollectiveOptions::stream and returns; what is put there later runs
/// after it. Inputs must stay and outputs must not be touched until then. The first calls of a
/// communicator may wait for those of other ranks, to connect; their timeout bounds that. One
/// thread at a time, and operations of different streams must be ordered by events, in the same
/// order on all ranks.
///
/// Calls of the ranks are not compared, and ranks that are late or never come are not noticed:
/// control(), a communicator of the same ranks on host memory, serves whoever does that. So a
/// watchdog calls check_alive() from another thread now and then, and abort() when it must.
///
/// Sums are not formed in rank order. int16 and bits cannot be reduced (NotSupported); everything
/// can be moved. Tags of send() and receive() do not count: messages between two ranks arrive in
/// the order in which they are sent, a receive knows its source, and sizes must be the same on both
/// sides. Their Transfer is done when they are enqueued. An exchange in which ranks send before
/// they receive needs a group: a send is over on its stream only when it was received.
///
/// Errors as communicator.h says. Destruction gives what is enqueued, and the ranks that are to be
/// destroyed too, two seconds to end.
class FARANDOLE_API DeviceCommunicator : public Communicator {
 public:
  MemoryKind memory_kind() const final { return MemoryKind::kDevice; }
  /// Of the same ranks on host memory. Abort ends both.
  const std::shared_ptr<Communicator>& control() const { return control_; }

  /// Calls until end_group() become one operation, which is not ordered in itself: their memory
  /// must not overlap, and they return nothing but errors of their arguments. Collectives of a
  /// group must have the same stream. Calls nest.
  virtual void begin_group() = 0;
  virtual void end_group(const CollectiveOptions& options = {}) = 0;

  /// Memory for collectives. Collective, with the same size on all ranks; not within a group.
  /// Throws SystemError if there is none left on this rank, which leaves the communicator usable.
  virtual std::shared_ptr<DeviceMemory> allocate(size_t bytes,
                                                 const CollectiveOptions& options = {}) = 0;

  /// A communicator of `ranks` of this one, in that order, which shares its connections. Collective
  /// over all ranks of this one; on ranks that get none `ranks` is empty and `control` null, and
  /// the result is null. `control` is the communicator on host memory of `ranks`.
  virtual std::unique_ptr<DeviceCommunicator> split(const std::vector<int>& ranks,
                                                    std::shared_ptr<Communicator> control) = 0;

 protected:
  DeviceCommunicator(std::string name, Topology topology, std::shared_ptr<Communicator> control)
      : Communicator(std::move(name), std::move(topology)), control_(std::move(control)) {}

 private:
  std::shared_ptr<Communicator> control_;
};

}  // namespace farandole::comm
