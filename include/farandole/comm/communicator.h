// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "farandole/comm/shared_memory.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"
#include "farandole/comm/transfer.h"
#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Which memory a communicator works on.
enum class MemoryKind {
  kHost,
  kDevice,  ///< of accelerators, see device_communicator.h
};

/// Options of one call.
struct CollectiveOptions {
  /// How long to wait for late ranks; zero means the communicator's own timeout.
  std::chrono::milliseconds timeout{0};
  /// Sleep at once, instead of spinning first, while peers have not arrived: for a thread that
  /// shares its core with computation. Waits within the collective, when all ranks have arrived,
  /// still spin.
  bool sleep_at_once = false;
  /// For MemoryKind::kDevice: what to enqueue on, a cudaStream_t, as c10::Stream::native_handle()
  /// gives it. Host communicators return when done.
  void* stream = nullptr;
  /// For MemoryKind::kDevice: what the elements of all ranks are multiplied by before a kSum. Host
  /// communicators take 1 alone.
  double factor = 1;
};

/// Collectives over raw buffers among a fixed set of ranks.
///
/// Every rank must call the same collectives in the same order with the same counts and types.
/// Otherwise every rank throws a MismatchError that has both calls, before memory is touched. Input
/// and output are the same buffer, the in-place position that each call documents, or do not
/// overlap.
///
/// Errors: InvalidArgument (misuse, nothing sent), MismatchError, PeerFailure, TimeoutError,
/// AbortedError, SystemError. MismatchError leaves the communicator usable, and so does
/// SystemError, which says that SharedMemory allocated nothing or that send() or receive() began
/// nothing. After any other CommError, of a collective or of a transfer, it is over on all ranks:
/// what is called or waited for later throws that error again; on the ranks that were told,
/// PeerFailure if a rank was lost, else AbortedError with its text.
/// shrink() makes a new one.
///
/// Threads: one call at a time, from any thread; abort() alone may come from another thread at
/// once. Streams: kHost communicators ignore streams and return when the data is there. Destruction
/// never communicates: peers that still wait for this rank get PeerFailure.
class FARANDOLE_API Communicator {
 public:
  virtual ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& name() const { return name_; }
  const Topology& topology() const { return topology_; }
  int rank() const { return topology_.rank; }
  int world_size() const { return topology_.world_size; }
  virtual MemoryKind memory_kind() const = 0;

  /// output[i] = op over ranks of input[i], for i < count, on every rank. In place: output ==
  /// input.
  virtual void all_reduce(const void* input, void* output, size_t count, DataType dtype,
                          ReduceOp op, const CollectiveOptions& options = {}) = 0;
  /// Rank r gets elements [r*count, (r+1)*count) of the reduction; input holds world_size*count.
  /// In place: output == input + rank*count.
  virtual void reduce_scatter(const void* input, void* output, size_t count, DataType dtype,
                              ReduceOp op, const CollectiveOptions& options = {}) = 0;
  /// output, world_size*count elements, is the inputs in rank order. In place: input == output +
  /// rank*count.
  virtual void all_gather(const void* input, void* output, size_t count, DataType dtype,
                          const CollectiveOptions& options = {}) = 0;
  /// buffer of `root` goes to every rank.
  virtual void broadcast(void* buffer, size_t count, DataType dtype, int root,
                         const CollectiveOptions& options = {}) = 0;
  /// As all_reduce, but only `root` gets the result; output is ignored elsewhere.
  virtual void reduce(const void* input, void* output, size_t count, DataType dtype, ReduceOp op,
                      int root, const CollectiveOptions& options = {}) = 0;
  /// As all_gather, but only `root` gets the result; output is ignored elsewhere.
  virtual void gather(const void* input, void* output, size_t count, DataType dtype, int root,
                      const CollectiveOptions& options = {}) = 0;
  /// Rank r gets elements [r*count, (r+1)*count) of root's input; input is ignored elsewhere.
  virtual void scatter(const void* input, void* output, size_t count, DataType dtype, int root,
                       const CollectiveOptions& options = {}) = 0;
  /// Block p of output is block `rank` of rank p's input; blocks hold `count` elements. Never in
  /// place.
  virtual void all_to_all(const void* input, void* output, size_t count, DataType dtype,
                          const CollectiveOptions& options = {}) = 0;
  /// As all_to_all with blocks of any sizes: `send_counts[p]` elements go to rank p and
  /// `receive_counts[p]` come from it, blocks in rank order without gaps. MismatchError on every
  /// rank if two ranks disagree on the size of a block.
  virtual void all_to_all_v(const void* input, const size_t* send_counts, void* output,
                            const size_t* receive_counts, DataType dtype,
                            const CollectiveOptions& options = {}) = 0;
  /// Returns when every rank has entered.
  virtual void barrier(const CollectiveOptions& options = {}) = 0;

  /// Source of a receive that takes a message of any rank.
  static constexpr int kAnySource = -1;
  /// Begins to send `bytes` to `destination`; messages between two ranks with one tag arrive in
  /// order. send and receive may be called by any thread, also while a collective runs. A message
  /// that no receive waits for goes as far as the channel between the two ranks has room (2 MiB of
  /// 2 ranks, 16 KiB of 64), unless the receiver waits for a later one or cannot send either.
  virtual std::shared_ptr<Transfer> send(const void* data, size_t bytes, int destination,
                                         uint64_t tag, const CollectiveOptions& options = {}) = 0;
  /// Begins to receive exactly `bytes` from `source` (or kAnySource) with `tag`.
  virtual std::shared_ptr<Transfer> receive(void* data, size_t bytes, int source, uint64_t tag,
                                            const CollectiveOptions& options = {}) = 0;

  /// Memory that all ranks map, if each rank maps that of all others; null if not. The same on all
  /// ranks; owned by this communicator. Local; any thread.
  virtual SharedMemory* shared_memory() { return nullptr; }

  /// Throws if the group is over: PeerFailure if a rank was lost, else AbortedError. CommError in a
  /// forked child. Local; any thread.
  virtual void check_usable() const = 0;
  /// Throws likewise, and PeerFailure if the process of a rank has ended. Asks the kernel. Local;
  /// any thread.
  virtual void check_alive() const { check_usable(); }
  /// For a new group of ranks of this one, while this rank waits for those for which `is_missed`.
  /// Throws PeerFailure if one has left this group, CommError if one waits for this rank in a
  /// collective. Local; any thread.
  virtual void check_joins(const std::function<bool(int rank)>& /*is_missed*/) {}
  /// Makes every call of this group, on all ranks, throw AbortedError with `reason`; waiting calls
  /// within 100 ms. Any thread; may be called more than once.
  virtual void abort(const std::string& reason) = 0;
  /// Replaces Config::timeout, also for what was made of this communicator. Local; any thread.
  virtual void set_timeout(std::chrono::milliseconds timeout) = 0;
  /// A new communicator of the ranks of this one that are not in `excluded`, in the same order;
  /// called by each of them, also after a failure. `store` must outlive the call and be fresh for
  /// it.
  virtual std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded, Store& store) = 0;

 protected:
  Communicator(std::string name, Topology topology)
      : name_(std::move(name)), topology_(std::move(topology)) {}

 private:
  std::string name_;
  Topology topology_;
};

}  // namespace farandole::comm
