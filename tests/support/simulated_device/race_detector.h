// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "support/simulated_device/vector_clock.h"

namespace farandole::sim {

/// Memory of a device that an operation touches. A strided view counts as all from its first byte
/// to its last.
struct Access {
  const void* data;
  size_t bytes;
  bool writes;
};

/// Finds operations that touch the same memory, one of them writing, without an order between them.
///
/// Order comes from streams (an operation is after those launched on its stream before), from waits
/// of streams for events, and from waits of the host (all that is launched later is after what any
/// thread has waited for). It is kept in vector clocks that advance when operations are launched,
/// not when they run. So what is found depends on the program and never on timing.
///
/// An allocation is a write on the stream that it is made for: the memory may have been in use
/// there. A release is a write after what the stream has been given and those recorded for the
/// memory, which is all that an allocator waits for.
///
/// Threads: any. Order between threads of the host is unknown here and taken for granted; races
/// between them are for ThreadSanitizer to find.
class RaceDetector {
 public:
  enum class Response { kThrow, kReport };

  /// Returns the number of a new stream. `name` is for reports.
  size_t add_stream(std::string name);
  /// An operation on a stream. Under kThrow a race throws RaceError, and the operation has then not
  /// happened.
  void launch(size_t stream, const std::string& kernel, const std::vector<Access>& accesses);
  /// What happens before an operation that is launched on `stream` after this call.
  VectorClock now(size_t stream);
  /// `earlier` happens before what is launched on `stream` after this call.
  void order(size_t stream, const VectorClock& earlier);
  /// `earlier` happens before all that is launched after this call.
  void order_host(const VectorClock& earlier);

  void allocate(const void* data, size_t bytes, size_t stream);
  /// The same of memory that no stream has in use: that of a graph.
  void allocate_unused(const void* data, size_t bytes);
  /// `done`: what the allocator waits for before it uses the memory again. Never throws RaceError.
  void release(const void* data, const std::vector<VectorClock>& done);

  /// The races found since the last call. Each names both operations, the reason and the fix.
  std::vector<std::string> take_reports();
  /// What launch() does about a race besides reporting it; kThrow at first.
  void set_response(Response response);

 private:
  struct Operation {
    std::string kernel;
    size_t stream;
    uint64_t position;  ///< in its stream, from 1
  };
  struct Touch {
    uintptr_t begin;
    uintptr_t end;
    bool writes;
    Operation by;
  };
  struct Allocation {
    uintptr_t begin;
    uintptr_t end;
    std::vector<Touch> touches;  ///< those that a later operation may race with
  };

  Allocation* find(uintptr_t address);
  std::optional<std::string> fault_of(const Touch& touch, const VectorClock& clock);
  /// The last touch that races with `touch`, which has `clock`; null if there is none.
  static const Touch* find_race(const Allocation& allocation, const Touch& touch,
                                const VectorClock& clock);
  static void remember(Allocation& allocation, const Touch& touch, const VectorClock& clock);
  std::string describe(const Operation& operation) const;

  std::mutex mutex_;
  // All below: guarded by mutex_.
  std::vector<std::string> names_;   ///< of streams
  std::vector<VectorClock> clocks_;  ///< of streams
  VectorClock host_;
  std::map<uintptr_t, Allocation> allocations_;  ///< by begin
  std::vector<std::string> reports_;
  Response response_ = Response::kThrow;
};

/// The one of this process's devices.
RaceDetector& race_detector();

}  // namespace farandole::sim
