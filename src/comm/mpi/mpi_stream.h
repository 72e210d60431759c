// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mpi.h>

#include <array>
#include <cstddef>
#include <memory>
#include <mutex>
#include <optional>

#include "comm/byte_stream.h"
#include "comm/fork_guard.h"
#include "comm/mpi/progress_thread.h"
#include "comm/shm/bootstrap/bootstrap.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"

namespace farandole::comm::mpi {

/// Pieces of a stream that are on their way at a time in one direction, and the most bytes of one.
constexpr size_t kPieces = 4;
constexpr size_t kPieceBytes = size_t{128} * 1024;

/// Memory of pieces, which MPI may read and write as long as their requests are pending.
struct Pieces {
  std::unique_ptr<std::byte[]> memory{new std::byte[kPieces * kPieceBytes]};
  std::array<MPI_Request, kPieces> requests;

  Pieces() { requests.fill(MPI_REQUEST_NULL); }
  std::byte* at(size_t piece) const { return memory.get() + piece * kPieceBytes; }
};

/// What this rank has sent and MPI has not delivered yet. Sends are synchronous: one that is
/// complete has been matched by the receiver, so that none is left halfway when nobody calls MPI
/// any more.
///
/// Threads: any.
class Outbox final : public Progressing {
 public:
  ~Outbox() override;

  /// A piece that is free; null: none is.
  std::byte* free_piece();
  /// Sends the first `bytes` of the piece that free_piece() gave. Returns MPI's code.
  int send(size_t bytes, MPI_Comm communicator, int peer, int tag);
  bool progress() override;
  /// Nothing more is sent, which the receiver learns from a message without bytes. Not more than
  /// once.
  void close(MPI_Comm communicator, int peer, int tag);
  /// `self`, this, lives until all is delivered.
  void outlive(std::shared_ptr<Outbox> self);
  /// The first error of a send; MPI_SUCCESS: there was none.
  int code();

 private:
  bool has_pending();
  bool is_done(MPI_Request& request);

  ForkGuard fork_guard_;
  std::mutex mutex_;  // guards all below
  Pieces pieces_;
  size_t next_ = 0;
  MPI_Request end_ = MPI_REQUEST_NULL;
  bool is_closed_ = false;
  int code_ = MPI_SUCCESS;
  std::shared_ptr<Outbox> self_;  ///< see outlive()
};

/// A stream over MPI: bytes pass in pieces through memory of the stream, so that a stream that is
/// given up leaves MPI no tensor to write to.
///
/// MPI moves nothing by itself: the thread that drives the stream does, and the ProgressThread
/// while what was sent is still on its way (rest()).
class MpiStream final : public ByteStream {
 public:
  MpiStream(MPI_Comm communicator, int peer, int tag);
  /// What was sent before still arrives.
  ~MpiStream() override;
  MpiStream(const MpiStream&) = delete;
  MpiStream& operator=(const MpiStream&) = delete;

  bool progress() override;
  void rest() override;
  void close() override;

 private:
  bool send_some();
  bool receive_some();
  bool has_come();
  bool post(size_t piece);
  bool is_good(int code);
  void withdraw_receives();

  MPI_Comm communicator_;
  int peer_;
  int tag_;
  ForkGuard fork_guard_;
  std::shared_ptr<Outbox> outbox_;
  bool is_driven_ = false;  ///< outbox_, by the ProgressThread while there is something in it

  std::unique_ptr<Pieces> inbox_;
  size_t next_ = 0;                ///< the piece that is read
  std::optional<size_t> arrived_;  ///< its bytes; empty: it has not come
  size_t read_ = 0;                ///< of them
};

/// See open_mpi_streams().
std::shared_ptr<StreamSource> open_streams(Store& store, shm::Bootstrap& bootstrap,
                                           const Topology& topology);

}  // namespace farandole::comm::mpi
