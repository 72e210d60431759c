// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/hosts/host_link.h"
#include "comm/hosts/host_map.h"
#include "comm/hosts/host_reduction.h"
#include "comm/hosts/link_waits.h"
#include "comm/hosts/message_relay.h"
#include "comm/shm/control_block.h"
#include "comm/shm/shared_memory_communicator.h"
#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"

namespace farandole::comm::hosts {

/// Collectives among ranks of several hosts: through shared memory within each host (an island),
/// and over a HostLink between ranks of different hosts.
///
/// Areas. Every rank has an area that the ranks of its host map. A collective passes through the
/// areas chunk by chunk, each chunk in one turn:
///   fill    copy the chunk into the own area
///   meet    the ranks of the host: enter() in a collective's first turn, later a step()
///   launch  reduce over the host what this rank sends, and queue what it sends and receives
///   combine (of reductions) wait for that, combine it, and queue what goes back
///   finish  wait for what is queued, step() where others of the host need it, copy it out
/// Turn t + 1 is launched before turn t is combined or finished, and combined before turn t is
/// finished, so memory and network work at the same time. Each byte goes to another host once.
///
/// Why areas may be overwritten. An area has three slots to fill and two for what arrives. A rank
/// that fills turn t + 1 has met the others in turn t. By then they have finished turn t - 2, or,
/// in reductions, have launched it, after which nobody reads what was filled. What arrives is
/// queued in launch of turn t + 1, or, in reductions, in combine of turn t: after the ranks have
/// met in turn t + 1, and so after they have finished turn t - 1, in reductions turn t - 2. Turns
/// count on from collective to collective.
///
/// Mismatches. All ranks of a host show each other their calls when they enter. Then each rank
/// sends the call of its host, with the number of bytes that follow, ahead of the first chunk, so
/// that no round trip is added. Each rank receives from every other host, so all ranks know the
/// calls of all hosts and agree on whether they differ, before an output is written. Bytes that
/// follow another call are read and dropped: the connections stay in step, and the group stays
/// usable.
///
/// Failures. What ends the island ends the link and the other way round, so that every rank learns
/// of each failure: the link at once, the island where it calls before_abort. A rank that waits for
/// the link looks at its island every 50 ms. Errors name ranks by their numbers in the group. A
/// late rank is named by those of its own host: they give up at the timeout, others a little later.
class MultiHostCommunicator final : public Communicator {
 public:
  /// Collective. Ranks that share one host get a SharedMemoryCommunicator. Throws what
  /// make_communicator() lists.
  static std::unique_ptr<Communicator> make(Store& store, const CommunicatorOptions& asked);
  ~MultiHostCommunicator() override;

  MemoryKind memory_kind() const override { return MemoryKind::kHost; }
  void all_reduce(const void* input, void* output, size_t count, DataType dtype, ReduceOp op,
                  const CollectiveOptions& options) override;
  void reduce_scatter(const void* input, void* output, size_t count, DataType dtype, ReduceOp op,
                      const CollectiveOptions& options) override;
  void all_gather(const void* input, void* output, size_t count, DataType dtype,
                  const CollectiveOptions& options) override;
  void broadcast(void* buffer, size_t count, DataType dtype, int root,
                 const CollectiveOptions& options) override;
  void reduce(const void* input, void* output, size_t count, DataType dtype, ReduceOp op, int root,
              const CollectiveOptions& options) override;
  void gather(const void* input, void* output, size_t count, DataType dtype, int root,
              const CollectiveOptions& options) override;
  void scatter(const void* input, void* output, size_t count, DataType dtype, int root,
               const CollectiveOptions& options) override;
  void all_to_all(const void* input, void* output, size_t count, DataType dtype,
                  const CollectiveOptions& options) override;
  void all_to_all_v(const void* input, const size_t* send_counts, void* output,
                    const size_t* receive_counts, DataType dtype,
                    const CollectiveOptions& options) override;
  void barrier(const CollectiveOptions& options) override;
  std::shared_ptr<Transfer> send(const void* data, size_t bytes, int destination, uint64_t tag,
                                 const CollectiveOptions& options) override;
  std::shared_ptr<Transfer> receive(void* data, size_t bytes, int source, uint64_t tag,
                                    const CollectiveOptions& options) override;

  void check_usable() const override;
  void check_alive() const override;
  void check_joins(const std::function<bool(int rank)>& is_missed) override;
  void abort(const std::string& reason) override;
  void set_timeout(std::chrono::milliseconds timeout) override;
  std::unique_ptr<Communicator> shrink(const std::vector<int>& excluded, Store& store) override;

 private:
  using Clock = std::chrono::steady_clock;

  /// Slots of an area that are filled, and those in which bytes arrive; see the class.
  static constexpr size_t kFilled = 3;
  static constexpr size_t kArrived = 2;
  /// The lane of collectives.
  static constexpr int kCollectives = 0;

  /// One collective under way on this rank.
  struct Call {
    shm::Signature signature;
    size_t element_bytes;
    std::chrono::milliseconds timeout;
    bool sleep_at_once;
    Clock::time_point deadline;  ///< for what the link does
    uint64_t begin_ticks;
    bool has_entered = false;
    bool has_announced = false;
  };
  /// Bytes to or from a rank of another host.
  struct Move {
    int peer;
    std::byte* data;
    size_t bytes;
  };
  using Moves = std::vector<Move>;
  /// How far the stream with a peer has come when the moves of a turn are done.
  struct Mark {
    int peer;
    uint64_t sent;
    uint64_t received;
  };
  /// A part of a collective's data: [begin, begin + size), in elements or bytes.
  struct Chunk {
    size_t begin;
    size_t size;
    uint64_t turn;
    std::vector<Mark> marks;
  };
  /// What a collective does with each chunk; see the class.
  struct Phases {
    std::function<void(const Chunk&)> fill;
    std::function<void(Chunk&)> launch;
    std::function<void(Chunk&)> finish;
    std::function<void(Chunk&)> combine = {};  ///< empty: there is none
  };
  /// What a rank sends to another host ahead of the first bytes of a collective.
  struct Announcement {
    uint64_t sequence;
    uint64_t bytes;        ///< of the first turn, that follow in this stream
    shm::Signature call;   ///< of the host's first rank
    int64_t differing;     ///< a rank of the host that has called something else; -1: none
    shm::Signature other;  ///< what it has called
    uint64_t thread;       ///< of the sender; see LinkWaits
  };
  /// The end of the island tells the link.
  struct LinkOfIsland;

  MultiHostCommunicator(Store& store, const CommunicatorOptions& options, const Topology& topology,
                        std::shared_ptr<StreamSource> streams);
  void connect(Store& store, const CommunicatorOptions& options,
               std::shared_ptr<StreamSource> streams);
  void exchange_addresses();
  int transfer_peer(int rank) const;

  Call begin(OpKind operation, size_t count, DataType dtype, const CollectiveOptions& options);
  void run(Call& call, const std::function<void()>& body);
  void pass(Call& call, size_t total, size_t chunk_size, const Phases& phases);
  void meet(Call& call);
  void step(const Call& call) const;
  void queue(Call& call, Chunk& chunk, const Moves& sends, const Moves& receives);
  void await(const Call& call, const Chunk& chunk) const;
  void drive(const Call& call, const std::function<bool()>& is_done,
             const std::function<void()>& look = {}) const;
  std::vector<Mark> announce(Call& call, const Moves& sends, bool differs);
  void hear_announcements(const Call& call, bool differs);
  void await_announcements(const Call& call, const std::vector<Mark>& marks);
  void look_for_crossing(const Call& call, const std::vector<Mark>& marks);
  void drop(const Call& call, const std::vector<Announcement>& heard);
  [[noreturn]] void throw_mismatch(const Call& call, const std::vector<Announcement>& heard) const;
  Announcement own_announcement(const Call& call, bool differs) const;
  bool has_moved(const std::vector<Mark>& marks) const;
  std::string text_of(const Call& call) const;
  std::chrono::milliseconds timeout_of(const CollectiveOptions& options) const;
  void record_event(const Call& call, size_t bytes) const;

  std::byte* filled(int local, const Chunk& chunk) const;
  std::byte* arrived(int local, const Chunk& chunk) const;
  std::vector<std::byte>& partial_of(const Chunk& chunk) { return partials_[chunk.turn % 2]; }
  std::vector<std::byte>& inbox_of(const Chunk& chunk) { return inboxes_[chunk.turn % 2]; }
  bool is_alone() const { return map_.size_of(host_) == 1; }

  // Where blocks lie; see multi_host_blocks.cpp and multi_host_reductions.cpp.
  struct Stripes;
  struct Exchange;
  void reduce_stripes(Call& call, const std::byte* input, std::byte* output, ReduceOp op,
                      int to_host);
  void gather_blocks(Call& call, const std::byte* input, std::byte* output, size_t bytes,
                     int to_host);
  size_t slot_of(int source) const;
  size_t slots() const;

  HostMap map_;
  int host_;
  int local_;
  CommunicatorOptions options_;
  std::atomic<std::chrono::milliseconds> timeout_;
  size_t area_bytes_;  ///< of one slot
  uint32_t event_group_;
  std::shared_ptr<LinkOfIsland> link_of_island_;
  std::vector<int> remote_;              ///< ranks of other hosts, ascending
  std::unique_ptr<MessageRelay> relay_;  ///< outlives the island's transfers
  std::unique_ptr<shm::SharedMemoryCommunicator> island_;
  std::shared_ptr<SymmetricMemory> areas_;
  std::unique_ptr<LinkWaits> waits_;  ///< outlives the link
  std::unique_ptr<HostLink> link_;
  std::vector<Announcement> announced_;             ///< what is on its way to peers
  std::array<std::vector<std::byte>, 2> partials_;  ///< by turn: what this rank sends
  std::array<std::vector<std::byte>, 2> inboxes_;   ///< by turn: what it receives and combines
  uint64_t turn_ = 0;
  std::exception_ptr failure_;  ///< why the group is over, as thrown on this rank
};

}  // namespace farandole::comm::hosts
