// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_stream.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "comm/mpi/check.h"
#include "comm/mpi/runtime.h"
#include "comm/mpi/start.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {
namespace {

/// Streams with all ranks of a group, over an MPI communicator of its own.
class Streams final : public StreamSource {
 public:
  explicit Streams(MPI_Comm communicator) : communicator_(communicator) {
    check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  std::unique_ptr<ByteStream> open(int peer, int lane) override {
    return std::make_unique<MpiStream>(communicator_, peer, /*tag=*/lane);
  }
  void note_lost() override { Runtime::suspect_an_end(); }
  void before_end(std::function<void()> leave) override {
    Runtime::before_end(this, std::move(leave));
  }

 private:
  MPI_Comm communicator_;
};

}  // namespace

std::shared_ptr<StreamSource> open_streams(Store& store, shm::Bootstrap& bootstrap,
                                           const Topology& topology) {
  return std::make_shared<Streams>(
      join_communicator(store, bootstrap, topology, {"FARANDOLE_LINK", "use MPI between hosts"}));
}

// ---- Outbox

Outbox::~Outbox() {
  if (fork_guard_.in_creator() && !Runtime::is_over() && !has_pending()) return;
  static_cast<void>(pieces_.memory.release());  // MPI may read it yet
}

/// Whether MPI needs the request's memory no more. Needs mutex_, but in the destructor.
bool Outbox::is_done(MPI_Request& request) {
  int is_done = 1;
  if (request == MPI_REQUEST_NULL) return true;
  const int code = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
  if (code == MPI_SUCCESS) return is_done != 0;
  if (code_ == MPI_SUCCESS) code_ = code;
  return true;
}

int Outbox::code() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return code_;
}

/// Needs mutex_, but in the destructor.
bool Outbox::has_pending() {
  bool pending = !is_done(end_);
  for (MPI_Request& request : pieces_.requests) pending = !is_done(request) || pending;
  return pending;
}

std::byte* Outbox::free_piece() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_done(pieces_.requests[next_]) ? pieces_.at(next_) : nullptr;
}

int Outbox::send(size_t bytes, MPI_Comm communicator, int peer, int tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const size_t piece = std::exchange(next_, (next_ + 1) % kPieces);
  return MPI_Issend(pieces_.at(piece), static_cast<int>(bytes), MPI_BYTE, peer, tag, communicator,
                    &pieces_.requests[piece]);
}

bool Outbox::progress() {
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock) return true;  // its stream is driven
  if (Runtime::is_over()) return false;
  const bool pending = has_pending();
  if (!pending) self_.reset();  // the caller holds this, too
  return pending;
}

void Outbox::close(MPI_Comm communicator, int peer, int tag) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (std::exchange(is_closed_, true)) return;
  MPI_Isend(nullptr, 0, MPI_BYTE, peer, tag, communicator, &end_);
}

void Outbox::outlive(std::shared_ptr<Outbox> self) {
  const std::lock_guard<std::mutex> lock(mutex_);
  self_ = std::move(self);
}

// ---- MpiStream

MpiStream::MpiStream(MPI_Comm communicator, int peer, int tag)
    : communicator_(communicator),
      peer_(peer),
      tag_(tag),
      outbox_(std::make_shared<Outbox>()),
      inbox_(std::make_unique<Pieces>()) {
  for (size_t piece = 0; piece < kPieces && post(piece); ++piece) {
  }
}

MpiStream::~MpiStream() {
  if (!fork_guard_.in_creator() || Runtime::is_over()) {
    static_cast<void>(inbox_->memory.release());
    return;
  }
  withdraw_receives();
  if (state() != State::kOpen) return;
  close();
  outbox_->outlive(outbox_);
  try {
    rest();
  } catch (const SystemError&) {
    // Without the thread MPI delivers it when it is called next.
  }
}

/// Receives for which nothing has come. MPI keeps the memory of others.
void MpiStream::withdraw_receives() {
  for (MPI_Request& request : inbox_->requests) {
    if (request == MPI_REQUEST_NULL) continue;
    int is_done = 0;
    MPI_Cancel(&request);
    MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
    if (is_done != 0) continue;
    static_cast<void>(inbox_->memory.release());
    return;
  }
}

bool MpiStream::progress() {
  if (state() != State::kOpen) return false;
  if (Runtime::is_over()) {
    end(State::kFailed, "MPI was finalized in this process.");
    return false;
  }
  const bool has_sent = send_some();
  return receive_some() || has_sent;
}

void MpiStream::rest() {
  if (state() != State::kOpen || !outbox_->progress()) return;
  if (!is_driven_) ProgressThread::get().add(outbox_);
  is_driven_ = true;
  ProgressThread::get().wake();
}

void MpiStream::close() {
  if (!Runtime::is_over()) outbox_->close(communicator_, peer_, tag_);
}

bool MpiStream::send_some() {
  bool has_sent = false;
  if (!is_good(outbox_->code())) return false;
  for (size_t sent = 0; sent < kPieces && !outgoing().empty(); ++sent) {
    std::byte* const piece = outbox_->free_piece();
    if (piece == nullptr) break;
    size_t bytes = 0;
    for (const Range& range : outgoing()) {
      const size_t taken = std::min(range.bytes, kPieceBytes - bytes);
      std::memcpy(piece + bytes, range.data, taken);
      bytes += taken;
      if (bytes == kPieceBytes) break;
    }
    if (!is_good(outbox_->send(bytes, communicator_, peer_, tag_))) break;
    note_sent(bytes);
    has_sent = true;
  }
  return has_sent;
}

bool MpiStream::receive_some() {
  bool has_received = false;
  for (size_t pieces = 0; pieces < kPieces && !incoming().empty() && has_come();) {
    const Range& range = incoming().front();
    const size_t bytes = std::min(range.bytes, *arrived_ - read_);
    std::memcpy(range.data, inbox_->at(next_) + read_, bytes);
    read_ += bytes;
    note_received(bytes);
    has_received = true;
    if (read_ < *arrived_) continue;
    arrived_.reset();
    read_ = 0;
    if (!post(std::exchange(next_, (next_ + 1) % kPieces))) break;
    ++pieces;
  }
  return has_received;
}

/// Whether the next piece is there.
bool MpiStream::has_come() {
  if (arrived_) return true;
  int is_there = 0;
  MPI_Status status;
  if (!is_good(MPI_Test(&inbox_->requests[next_], &is_there, &status)) || is_there == 0) {
    return false;
  }
  int bytes = 0;
  MPI_Get_count(&status, MPI_BYTE, &bytes);
  if (bytes == 0) {
    end(State::kClosed);
    return false;
  }
  arrived_ = static_cast<size_t>(bytes);
  return true;
}

bool MpiStream::post(size_t piece) {
  return is_good(MPI_Irecv(inbox_->at(piece), static_cast<int>(kPieceBytes), MPI_BYTE, peer_, tag_,
                           communicator_, &inbox_->requests[piece]));
}

bool MpiStream::is_good(int code) {
  if (code == MPI_SUCCESS) return true;
  end(is_process_failure(code) ? State::kClosed : State::kFailed, text_of(code) + ".");
  return false;
}

}  // namespace farandole::comm::mpi
