// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/wide_collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/mpi/check.h"

namespace farandole::comm::mpi {
namespace {

/// `length` bytes of a block of `extent` bytes; the next element is that of the next block.
class StridedBytes {
 public:
  StridedBytes(size_t length, size_t extent) {
    MPI_Datatype bytes = MPI_DATATYPE_NULL;
    check(MPI_Type_contiguous(static_cast<int>(length), MPI_BYTE, &bytes), "MPI_Type_contiguous");
    check(MPI_Type_create_resized(bytes, 0, static_cast<MPI_Aint>(extent), &type_),
          "MPI_Type_create_resized");
    check(MPI_Type_free(&bytes), "MPI_Type_free");
    check(MPI_Type_commit(&type_), "MPI_Type_commit");
  }
  ~StridedBytes() { MPI_Type_free(&type_); }
  StridedBytes(const StridedBytes&) = delete;
  StridedBytes& operator=(const StridedBytes&) = delete;
  MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

const std::byte* at(const void* begin, size_t offset) {
  return static_cast<const std::byte*>(begin) + offset;
}
std::byte* at(void* begin, size_t offset) { return static_cast<std::byte*>(begin) + offset; }

size_t index_of(int rank) { return static_cast<size_t>(rank); }

}  // namespace

void WideCollectives::in_pieces(size_t block_bytes, const Piece& piece) const {
  const size_t most = std::max<size_t>(1, kMostBytes / index_of(world_size_));
  if (block_bytes <= most) return piece(0, static_cast<int>(block_bytes), MPI_BYTE);
  for (size_t offset = 0; offset < block_bytes; offset += most) {
    const StridedBytes type(std::min(most, block_bytes - offset), block_bytes);
    piece(offset, 1, type.get());
  }
}

void WideCollectives::all_reduce(const void* input, void* output, size_t count,
                                 const Reduction& reduction) const {
  const size_t most = kMostBytes / reduction.element_bytes();
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t offset = begin * reduction.element_bytes();
    entry_.check(MPI_Allreduce(input == output ? MPI_IN_PLACE : at(input, offset),
                               at(output, offset), static_cast<int>(std::min(most, count - begin)),
                               reduction.type(), reduction.operation(), communicator_),
                 "MPI_Allreduce");
  }
}

void WideCollectives::reduce(const void* input, void* output, size_t count,
                             const Reduction& reduction, int root) const {
  const size_t most = kMostBytes / reduction.element_bytes();
  const bool is_root = rank_ == root;
  for (size_t begin = 0; begin < count; begin += most) {
    const size_t offset = begin * reduction.element_bytes();
    entry_.check(MPI_Reduce(is_root && input == output ? MPI_IN_PLACE : at(input, offset),
                            is_root ? at(output, offset) : nullptr,
                            static_cast<int>(std::min(most, count - begin)), reduction.type(),
                            reduction.operation(), root, communicator_),
                 "MPI_Reduce");
  }
}

void WideCollectives::reduce_scatter(const void* input, void* output, size_t count,
                                     const Reduction& reduction) const {
  const size_t bytes = count * reduction.element_bytes();
  if (bytes > kMostBytes / index_of(world_size_)) {
    for (int root = 0; root < world_size_; ++root) {
      reduce(at(input, index_of(root) * bytes), output, count, reduction, root);
    }
    return;
  }
  // In place MPI would write the result to the input's beginning.
  const bool in_place = output == at(input, index_of(rank_) * bytes);
  std::vector<std::byte> apart(in_place ? bytes : 0);
  entry_.check(
      MPI_Reduce_scatter_block(input, in_place ? apart.data() : output, static_cast<int>(count),
                               reduction.type(), reduction.operation(), communicator_),
      "MPI_Reduce_scatter_block");
  if (in_place) std::memcpy(output, apart.data(), bytes);
}

void WideCollectives::broadcast(void* buffer, size_t bytes, int root) const {
  for (size_t offset = 0; offset < bytes; offset += kMostBytes) {
    entry_.check(
        MPI_Bcast(at(buffer, offset), static_cast<int>(std::min(kMostBytes, bytes - offset)),
                  MPI_BYTE, root, communicator_),
        "MPI_Bcast");
  }
}

void WideCollectives::all_gather(const void* input, void* output, size_t bytes) const {
  const bool in_place = input == at(output, index_of(rank_) * bytes);
  in_pieces(bytes, [&](size_t offset, int count, MPI_Datatype type) {
    entry_.check(MPI_Allgather(in_place ? MPI_IN_PLACE : at(input, offset), count, type,
                               at(output, offset), count, type, communicator_),
                 "MPI_Allgather");
  });
}

void WideCollectives::gather(const void* input, void* output, size_t bytes, int root) const {
  const bool is_root = rank_ == root;
  const bool in_place = is_root && input == at(output, index_of(rank_) * bytes);
  in_pieces(bytes, [&](size_t offset, int count, MPI_Datatype type) {
    entry_.check(
        MPI_Gather(in_place ? MPI_IN_PLACE : at(input, offset), count, type,
                   is_root ? at(output, offset) : nullptr, count, type, root, communicator_),
        "MPI_Gather");
  });
}

void WideCollectives::scatter(const void* input, void* output, size_t bytes, int root) const {
  const bool is_root = rank_ == root;
  const bool in_place = is_root && output == at(input, index_of(rank_) * bytes);
  in_pieces(bytes, [&](size_t offset, int count, MPI_Datatype type) {
    entry_.check(
        MPI_Scatter(is_root ? at(input, offset) : nullptr, count, type,
                    in_place ? MPI_IN_PLACE : at(output, offset), count, type, root, communicator_),
        "MPI_Scatter");
  });
}

void WideCollectives::all_to_all(const void* input, void* output, size_t bytes) const {
  in_pieces(bytes, [&](size_t offset, int count, MPI_Datatype type) {
    entry_.check(MPI_Alltoall(at(input, offset), count, type, at(output, offset), count, type,
                              communicator_),
                 "MPI_Alltoall");
  });
}

void WideCollectives::all_to_all_v(const void* input, const std::vector<size_t>& sent, void* output,
                                   const std::vector<size_t>& received, bool is_huge) const {
  std::byte nothing{};
  const void* const from = input == nullptr ? &nothing : input;
  void* const to = output == nullptr ? &nothing : output;
  if (is_huge) return exchange_huge(at(from, 0), sent, at(to, 0), received);
  const auto counts_and_places = [](const std::vector<size_t>& blocks) {
    std::vector<int> counts;
    std::vector<int> places;
    size_t place = 0;
    for (const size_t bytes : blocks) {
      counts.push_back(static_cast<int>(bytes));
      places.push_back(static_cast<int>(place));
      place += bytes;
    }
    return std::make_pair(counts, places);
  };
  const auto [send_counts, send_places] = counts_and_places(sent);
  const auto [receive_counts, receive_places] = counts_and_places(received);
  entry_.check(MPI_Alltoallv(from, send_counts.data(), send_places.data(), MPI_BYTE, to,
                             receive_counts.data(), receive_places.data(), MPI_BYTE, communicator_),
               "MPI_Alltoallv");
}

/// MPI_Alltoallv() counts places in int. Messages of one pair of ranks arrive in order.
void WideCollectives::exchange_huge(const std::byte* input, const std::vector<size_t>& sent,
                                    std::byte* output, const std::vector<size_t>& received) const {
  std::vector<MPI_Request> requests;
  const auto begin = [&](size_t bytes, const auto& call) {
    for (size_t offset = 0; offset < bytes; offset += kMostBytes) {
      requests.push_back(MPI_REQUEST_NULL);
      call(offset, static_cast<int>(std::min(kMostBytes, bytes - offset)), &requests.back());
    }
  };
  size_t place = 0;
  for (int peer = 0; peer < world_size_; place += received[index_of(peer)], ++peer) {
    begin(received[index_of(peer)], [&](size_t offset, int count, MPI_Request* request) {
      entry_.check(MPI_Irecv(output + place + offset, count, MPI_BYTE, peer, kHugeBlock,
                             communicator_, request),
                   "MPI_Irecv");
    });
  }
  place = 0;
  for (int peer = 0; peer < world_size_; place += sent[index_of(peer)], ++peer) {
    begin(sent[index_of(peer)], [&](size_t offset, int count, MPI_Request* request) {
      entry_.check(MPI_Isend(input + place + offset, count, MPI_BYTE, peer, kHugeBlock,
                             communicator_, request),
                   "MPI_Isend");
    });
  }
  entry_.check(MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE),
               "MPI_Waitall");
}

void WideCollectives::share(const void* own, void* all, size_t bytes) const {
  const int count = static_cast<int>(bytes);
  entry_.check(MPI_Allgather(own, count, MPI_BYTE, all, count, MPI_BYTE, communicator_),
               "MPI_Allgather");
}

}  // namespace farandole::comm::mpi
