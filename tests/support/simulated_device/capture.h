// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "support/simulated_device/graph.h"

namespace farandole::sim {

class Stream;

// The capture of streams into a graph, with CUDA's rules. What is launched on a captured stream is
// recorded and does not run. A stream that waits for an event of a captured stream is captured too,
// until the end, and must have been joined by then: the first stream must wait for what was
// launched on it. A call against the rules throws CaptureError and makes the capture invalid: all
// calls on its streams throw then, the end of the capture too.

/// What a capture forbids: calls that may wait for the device (queries, waits of the host,
/// allocations of new memory). Numbered as cudaStreamCaptureMode.
enum class CaptureMode {
  kGlobal,       ///< to all threads
  kThreadLocal,  ///< to the thread that has begun it
  kRelaxed,      ///< to nobody
};

/// How strict captures are to the calling thread: under kGlobal, as it is at first, those of other
/// threads count, under kThreadLocal its own alone, under kRelaxed none. Returns the mode before.
CaptureMode exchange_capture_mode(CaptureMode mode);

/// Throws CaptureError, and makes captures invalid, if they forbid such calls to this thread.
void check_unsafe_call(const std::string& call);

/// One capture, from its begin to its end. Its streams and the events recorded on them share it.
///
/// Threads: any.
class Capture {
 public:
  /// Of all that `origin` is given until end().
  Capture(Stream& origin, CaptureMode mode);
  ~Capture();
  Capture(const Capture&) = delete;
  Capture& operator=(const Capture&) = delete;

  /// Throws CaptureError if it is invalid or has ended.
  void check() const;
  bool is_valid() const;
  /// Makes it invalid, and throws CaptureError. `error` is CUDA's name of it.
  [[noreturn]] void fail(const std::string& what, const std::string& error, const std::string& why);
  /// The same without the exception.
  void invalidate(const std::string& why);

  void add_stream(Stream& joined);
  /// Returns the number of the node.
  size_t add(Node node);
  /// The graph will keep the memory.
  void keep(void* memory);
  /// Takes all streams out of the capture. `last`: what the origin has waited for. Throws
  /// CaptureError if it is invalid or another stream is not joined.
  std::shared_ptr<Graph> end(const Stream& stream, const Nodes& last);

 private:
  friend void check_unsafe_call(const std::string& call);

  bool forbids(CaptureMode asking) const;
  /// A kernel that the origin has not waited for, in words; empty if there is none.
  static std::string find_unjoined(const std::vector<Node>& nodes, const Nodes& last);

  Stream& origin_;
  const CaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  mutable std::mutex mutex_;
  // All below: guarded by mutex_.
  bool has_ended_ = false;
  std::string failure_;  ///< why it is invalid; empty: it is valid
  std::vector<Stream*> streams_;
  std::vector<Node> nodes_;
  std::vector<void*> memory_;
};

}  // namespace farandole::sim

// For who knows devices by the names of their functions only: as cudaStreamIsCapturing() and
// cudaThreadExchangeStreamCaptureMode(), with a Stream* and the numbers of CUDA's enumerators.
extern "C" int simStreamIsCapturing(void* stream, int* status);
extern "C" int simThreadExchangeStreamCaptureMode(int* mode);
