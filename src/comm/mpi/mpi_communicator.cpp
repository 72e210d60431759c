// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/mpi_communicator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "comm/arguments.h"
#include "comm/diagnosis.h"
#include "comm/lost_rank.h"
#include "comm/mpi/runtime.h"
#include "comm/mpi/start.h"
#include "comm/shm/shared_memory_communicator.h"
#include "comm/shm/system/reason.h"
#include "comm/shrink.h"
#include "comm/split_sizes.h"
#include "farandole/comm/events.h"
#include "farandole/comm/interrupt.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm::mpi {
namespace {

size_t index_of(int number) { return static_cast<size_t>(number); }

bool has_more_ranks_than_cores(const Topology& topology) {
  return topology.local_world_size > topology.local_cores;
}

/// Says once a process what carries collectives.
void log_choice(const std::string& group, int world_size) {
  static std::atomic<bool> is_said{false};
  if (is_said.exchange(true)) return;
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  std::string library(text.data(), index_of(length));
  library = library.substr(0, library.find_first_of(",\n"));
  log(LogLevel::kInfo, "group '" + group + "' has " + std::to_string(world_size) +
                           " ranks of one MPI job: its collectives are those of " + library + ".");
}

}  // namespace

std::unique_ptr<Communicator> MpiCommunicator::make(Store& store,
                                                    const CommunicatorOptions& asked) {
  Start start = meet(store, asked);
  std::unique_ptr<MpiCommunicator> made(
      new MpiCommunicator(asked, start.topology, start.communicator, std::move(start.liveness)));
  made->options_.while_forming = nullptr;
  CollectiveOptions options;
  options.timeout = shm::formation_timeout(asked);
  made->barrier(options);
  if (made->rank() == 0) log_choice(asked.name, asked.world_size);
  return made;
}

MpiCommunicator::MpiCommunicator(const CommunicatorOptions& options, const Topology& topology,
                                 MPI_Comm made, shm::Liveness liveness)
    : Communicator(options.name, topology),
      options_(options),
      timeout_(options.config.timeout),
      event_group_(group_id(options.name)),
      group_(std::make_unique<Group>(made, topology, std::move(liveness),
                                     Group::Options{options.name, options.before_abort})),
      entry_(*group_, options.config.spin, has_more_ranks_than_cores(topology)),
      collectives_(entry_, made, rank(), world_size()),
      messages_(
          std::make_shared<Messages>(*group_, options.config.spin, Runtime::get().most_tag())) {}

MpiCommunicator::~MpiCommunicator() {
  if (group_->in_creator()) messages_->close();
}

// ---- A call

MpiCommunicator::Call MpiCommunicator::begin(OpKind operation, size_t count, DataType dtype,
                                             const CollectiveOptions& options) {
  group_->check_in_creator();
  if (failure_) std::rethrow_exception(failure_);
  if (group_->is_over() || Runtime::is_over()) {
    try {
      group_->check_usable(subject());
    } catch (const CommError&) {
      failure_ = std::current_exception();
      throw;
    }
  }
  Call call{{}, options, kDiagnosis ? event_ticks() : 0};
  call.signature.operation = operation;
  call.signature.dtype = dtype;
  call.signature.root = -1;
  call.signature.count = count;
  return call;
}

template <class Body>
void MpiCommunicator::run(Call& call, size_t bytes, const Body& body) {
  uint64_t arrived = call.begin_ticks;
  try {
    entry_.meet(call.signature, timeout_of(call.options), call.options.sleep_at_once);
    if (kDiagnosis && entry_.has_waited()) arrived = event_ticks();
    const bool has_own_counts = call.signature.operation == OpKind::kAllToAllV;
    if (call.signature.count > 0 || has_own_counts) body();
  } catch (const MismatchError&) {
    throw;
  } catch (const std::exception& error) {
    failure_ = failure_of_later_calls(std::current_exception(), name());
    give_up(error);
    throw;
  }
  note(call, bytes, arrived);
}

void MpiCommunicator::give_up(const std::exception& error) {
  const auto* lost = dynamic_cast<const PeerFailure*>(&error);
  group_->abort(topology().name_of(rank()) + " gave up: " + shm::reason_of(error.what()),
                lost == nullptr ? -1 : lost->rank().value_or(-1));
}

void MpiCommunicator::note(const Call& call, size_t bytes, uint64_t arrived_ticks) const {
  if (!kDiagnosis) return;
  Event event;
  event.operation = call.signature.operation;
  event.latest_rank = -1;  // who of the ranks behind the last message was late is not known
  event.group = event_group_;
  event.sequence = entry_.sequence();
  event.bytes = bytes;
  event.begin_ns = call.begin_ticks;
  event.arrived_ns = arrived_ticks;
  event.end_ns = event_ticks();
  record(event);
}

std::chrono::milliseconds MpiCommunicator::timeout_of(const CollectiveOptions& options) const {
  return std::min(options.timeout.count() > 0 ? options.timeout : timeout_.load(),
                  shm::kMostTimeout);
}

Group::Subject MpiCommunicator::subject() const {
  return {[this] { return "group '" + name() + "'"; }};
}

// ---- Collectives

void MpiCommunicator::all_reduce(const void* input, void* output, size_t count, DataType dtype,
                                 ReduceOp op, const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllReduce, count, dtype, options);
  call.signature.reduce_op = op;
  check_all_reduce(input, output, count, dtype, op);
  run(call, count * size_of(dtype), [&] {
    const Reduction reduction(dtype, op, world_size());
    if (reduction.scales()) reduction.prepare(input, output, count);
    collectives_.all_reduce(reduction.scales() ? output : input, output, count, reduction);
    reduction.finish(output, count);
  });
}

void MpiCommunicator::reduce(const void* input, void* output, size_t count, DataType dtype,
                             ReduceOp op, int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kReduce, count, dtype, options);
  call.signature.reduce_op = op;
  call.signature.root = root;
  check_reduce(topology(), input, output, count, dtype, op, root);
  run(call, count * size_of(dtype), [&] {
    const Reduction reduction(dtype, op, world_size());
    const void* from = input;
    std::vector<std::byte> prepared(reduction.scales() ? count * size_of(dtype) : 0);
    if (reduction.scales()) {
      reduction.prepare(input, prepared.data(), count);
      from = prepared.data();
    }
    collectives_.reduce(from, output, count, reduction, root);
    if (rank() == root) reduction.finish(output, count);
  });
}

void MpiCommunicator::reduce_scatter(const void* input, void* output, size_t count, DataType dtype,
                                     ReduceOp op, const CollectiveOptions& options) {
  Call call = begin(OpKind::kReduceScatter, count, dtype, options);
  call.signature.reduce_op = op;
  check_reduce_scatter(topology(), input, output, count, dtype, op);
  run(call, count * size_of(dtype), [&] {
    const Reduction reduction(dtype, op, world_size());
    const void* from = input;
    const size_t all = count * index_of(world_size());
    std::vector<std::byte> prepared(reduction.scales() ? all * size_of(dtype) : 0);
    if (reduction.scales()) {
      reduction.prepare(input, prepared.data(), all);
      from = prepared.data();
    }
    collectives_.reduce_scatter(from, output, count, reduction);
    reduction.finish(output, count);
  });
}

void MpiCommunicator::all_gather(const void* input, void* output, size_t count, DataType dtype,
                                 const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllGather, count, dtype, options);
  check_all_gather(topology(), input, output, count, dtype);
  const size_t bytes = count * size_of(dtype);
  run(call, bytes, [&] { collectives_.all_gather(input, output, bytes); });
}

void MpiCommunicator::broadcast(void* buffer, size_t count, DataType dtype, int root,
                                const CollectiveOptions& options) {
  Call call = begin(OpKind::kBroadcast, count, dtype, options);
  call.signature.root = root;
  check_broadcast(topology(), buffer, count, dtype, root);
  const size_t bytes = count * size_of(dtype);
  run(call, bytes, [&] { collectives_.broadcast(buffer, bytes, root); });
}

void MpiCommunicator::gather(const void* input, void* output, size_t count, DataType dtype,
                             int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kGather, count, dtype, options);
  call.signature.root = root;
  check_gather(topology(), input, output, count, dtype, root);
  const size_t bytes = count * size_of(dtype);
  run(call, bytes, [&] { collectives_.gather(input, output, bytes, root); });
}

void MpiCommunicator::scatter(const void* input, void* output, size_t count, DataType dtype,
                              int root, const CollectiveOptions& options) {
  Call call = begin(OpKind::kScatter, count, dtype, options);
  call.signature.root = root;
  check_scatter(topology(), input, output, count, dtype, root);
  const size_t bytes = count * size_of(dtype);
  run(call, bytes, [&] { collectives_.scatter(input, output, bytes, root); });
}

void MpiCommunicator::all_to_all(const void* input, void* output, size_t count, DataType dtype,
                                 const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllToAll, count, dtype, options);
  check_all_to_all(topology(), input, output, count, dtype);
  const size_t bytes = count * size_of(dtype);
  run(call, bytes * index_of(world_size()), [&] { collectives_.all_to_all(input, output, bytes); });
}

void MpiCommunicator::all_to_all_v(const void* input, const size_t* send_counts, void* output,
                                   const size_t* receive_counts, DataType dtype,
                                   const CollectiveOptions& options) {
  Call call = begin(OpKind::kAllToAllV, 0, dtype, options);
  check_all_to_all_v(topology(), input, send_counts, output, receive_counts, dtype);
  const size_t sent = sum_of(send_counts, index_of(world_size()));
  run(call, sent * size_of(dtype),
      [&] { exchange_blocks(input, send_counts, output, receive_counts, size_of(dtype)); });
}

/// All ranks see the sizes of all blocks, so that all throw or none does.
void MpiCommunicator::exchange_blocks(const void* input, const size_t* send_counts, void* output,
                                      const size_t* receive_counts, size_t element_bytes) {
  const size_t world = index_of(world_size());
  std::vector<size_t> own(send_counts, send_counts + world);
  own.insert(own.end(), receive_counts, receive_counts + world);
  std::vector<size_t> all(own.size() * world);
  collectives_.share(own.data(), all.data(), own.size() * sizeof(size_t));
  std::vector<const size_t*> rows;
  bool is_huge = false;
  const auto most = WideCollectives::kMostBytes / element_bytes;
  for (size_t rank = 0; rank < world; ++rank) {
    rows.push_back(all.data() + rank * own.size());
    is_huge =
        is_huge || sum_of(rows.back(), world) > most || sum_of(rows.back() + world, world) > most;
  }
  check_split_sizes(name(), topology(), rows);
  std::vector<size_t> sent;
  std::vector<size_t> received;
  for (size_t peer = 0; peer < world; ++peer) {
    sent.push_back(send_counts[peer] * element_bytes);
    received.push_back(receive_counts[peer] * element_bytes);
  }
  collectives_.all_to_all_v(input, sent, output, received, is_huge);
}

/// An Entry is a barrier.
void MpiCommunicator::barrier(const CollectiveOptions& options) {
  Call call = begin(OpKind::kBarrier, 0, DataType::kUInt8, options);
  run(call, 0, [] {});
}

// ---- The rest of the interface

std::shared_ptr<Transfer> MpiCommunicator::send(const void* data, size_t bytes, int destination,
                                                uint64_t tag, const CollectiveOptions& options) {
  check_peer("send", "destination", destination, 0, world_size());
  group_->check_usable(subject());
  check_message("send", data, bytes);
  auto* from = static_cast<std::byte*>(const_cast<void*>(data));  // only read
  return messages_->send({from, bytes, destination, tag, timeout_of(options)});
}

std::shared_ptr<Transfer> MpiCommunicator::receive(void* data, size_t bytes, int source,
                                                   uint64_t tag, const CollectiveOptions& options) {
  check_peer("receive", "source", source, kAnySource, world_size());
  group_->check_usable(subject());
  check_message("receive", data, bytes);
  return messages_->receive(
      {static_cast<std::byte*>(data), bytes, source, tag, timeout_of(options)});
}

void MpiCommunicator::check_usable() const {
  if (group_->in_creator()) group_->listen();
  group_->check_usable(subject());
}

void MpiCommunicator::check_alive() const {
  check_usable();
  for (int peer = 0; peer < world_size(); ++peer) {
    if (peer == rank() || !group_->is_dead(peer)) continue;
    throw PeerFailure("peer-ended",
                      "group '" + name() + "' cannot continue: " + topology().describe(peer) + " " +
                          group_->how_lost(peer) + ".",
                      "the group needs all of its ranks.", kFixOfDeath,
                      topology().fault_of({peer}));
  }
}

void MpiCommunicator::abort(const std::string& reason) { group_->abort(reason); }

void MpiCommunicator::set_timeout(std::chrono::milliseconds timeout) { timeout_.store(timeout); }

std::unique_ptr<Communicator> MpiCommunicator::shrink(const std::vector<int>& excluded,
                                                      Store& store) {
  CommunicatorOptions options = options_of_shrunk(*this, options_, excluded);
  options.config.timeout = timeout_;
  return make(store, options);
}

}  // namespace farandole::comm::mpi
