// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/shared_memory_communicator.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>

#include "comm/arguments.h"
#include "comm/diagnosis.h"
#include "comm/shm/bootstrap/bootstrap.h"
#include "comm/shm/buckets/shared_bucket_reduction.h"
#include "comm/shm/channel.h"
#include "comm/shm/shared_signals.h"
#include "comm/shm/system/reason.h"
#include "comm/shrink.h"
#include "farandole/comm/events.h"
#include "farandole/error.h"
#include "farandole/version.h"
#include "log.h"

namespace farandole::comm::shm {
namespace {

/// Bytes that a rank copies from a peer in the time of one barrier, measured: 0.1 us between two
/// cores; 7 us among four ranks on two cores, where every barrier needs context switches.
constexpr size_t kBarrierBytes = size_t{16} * 1024;
constexpr size_t kBarrierBytesAmongMany = size_t{128} * 1024;

/// Bytes from which on the copy into a slot takes long enough to be timed.
constexpr size_t kClockBytes = size_t{16} * 1024;

size_t page_bytes() { return static_cast<size_t>(::sysconf(_SC_PAGESIZE)); }

size_t round_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

void check_rank(const CommunicatorOptions& options) {
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    throw InvalidArgument("no-such-rank",
                          "rank " + std::to_string(options.rank) + " of world size " +
                              std::to_string(options.world_size) + " does not exist.",
                          "ranks count from 0 to world_size - 1.",
                          "pass the rank and world size that the launcher gave this process.");
  }
}

void check_one_host(const CommunicatorOptions& options, const Topology& topology) {
  if (topology.host_count() == 1) return;
  throw NotSupported("several-hosts",
                     "group '" + options.name + "' spans " + std::to_string(topology.host_count()) +
                         " hosts: " + topology.describe(0) + " and " +
                         topology.describe(topology.world_size - 1) + ", for example.",
                     "backend 'shm' connects ranks of one host.",
                     "use backend 'tcp', which connects hosts. If all ranks are on one host, unset "
                     "FARANDOLE_HOST_ID.");
}

size_t control_bytes(int world_size) {
  return round_up(Lockstep::control_bytes(world_size), page_bytes());
}

/// What must be the same on all ranks that map one segment.
std::string build_of(const CommunicatorOptions& options) {
  std::string build = std::string("Farandole ") + version();
  if (!options.build.empty()) build += ", " + options.build;
  build += ", layout " + std::to_string(kLayout);
  for (const size_t bytes :
       {sizeof(GroupBlock), sizeof(RankBlock), kInlineBytes, offsetof(Channel, data),
        Staging::kLeastRingBytes, PointToPoint::shared_bytes(2), size_t{kMaxRanks}}) {
    build += "-" + std::to_string(bytes);
  }
  return build;
}

/// The group's memory: control words, staging slots, channels.
size_t segment_bytes(int world_size, const Config& config) {
  return control_bytes(world_size) + Staging::bytes_for(world_size, config.staging_bytes) +
         PointToPoint::shared_bytes(world_size);
}

}  // namespace

struct SharedMemoryCommunicator::Parts {
  CommunicatorOptions options;
  Topology topology;
  DescriptorExchange descriptors;
  std::shared_ptr<Mapping> memory;
  Liveness liveness;
};

namespace {

/// All ranks must lay out the segment and choose the same ways, so they take what rank 0 has:
/// its staging slots, and its count of cores.
void adopt_layout(Bootstrap& bootstrap, Config& config, Topology& topology) {
  const std::string name = "layout";
  if (topology.rank == 0) {
    bootstrap.set(
        name, std::to_string(config.staging_bytes) + " " + std::to_string(topology.local_cores));
    return;
  }
  size_t staging_bytes = 0;
  std::istringstream(bootstrap.get(name)) >> staging_bytes >> topology.local_cores;
  if (staging_bytes != config.staging_bytes) {
    log(LogLevel::kWarning,
        topology.name_of(topology.rank) + " of group '" + bootstrap.group() +
            "' uses rank 0's FARANDOLE_STAGING_BYTES=" + std::to_string(staging_bytes) +
            " instead of its own " + std::to_string(config.staging_bytes) + ".");
  }
  config.staging_bytes = staging_bytes;
}

/// Logs one line per process, however many groups it makes.
void warn_of_unseen(const std::string& group, const Liveness& liveness, const Topology& topology) {
  static std::atomic<bool> has_warned{false};
  std::string names;
  for (int rank = 0; rank < topology.world_size; ++rank) {
    if (!liveness.sees(rank)) names += (names.empty() ? "" : ", ") + topology.describe(rank);
  }
  if (names.empty() || has_warned.exchange(true)) return;
  log(LogLevel::kWarning,
      topology.name_of(topology.rank) + " of group '" + group + "' cannot watch " + names +
          ": it is in another PID namespace, and the kernel (or a sandbox) provides no "
          "pidfds. If it dies, only a timeout will show it.");
}

/// Each rank allocates the pages that it will write first, so that missing memory is found now.
void reserve_own_part(const Descriptor& segment, const Topology& topology, const Config& config) {
  const auto rank = static_cast<size_t>(topology.rank);
  const size_t control = control_bytes(topology.world_size);
  const size_t staging = Staging::bytes_for(topology.world_size, config.staging_bytes);
  const size_t channels =
      PointToPoint::shared_bytes(topology.world_size) / static_cast<size_t>(topology.world_size);
  if (rank == 0) reserve(segment, 0, control);
  reserve(segment, control + rank * config.staging_bytes, config.staging_bytes);
  reserve(segment, control + staging + rank * channels, channels);
}

/// Maps one segment on all ranks. Returns once all of them have it: from then on ranks learn of
/// each other through it.
std::shared_ptr<Mapping> share_memory(Bootstrap& bootstrap, DescriptorExchange& descriptors,
                                      Liveness& liveness, const Topology& topology,
                                      const Config& config) {
  const Await await = [&](const std::vector<int>& peers, const Ready& ready) {
    bootstrap.await(peers, ready);
  };
  descriptors.connect(bootstrap);
  if (!liveness.sees_all()) {
    liveness.adopt(descriptors.all_gather(open_pidfd(::getpid()), await));
    warn_of_unseen(bootstrap.group(), liveness, topology);
  }
  const auto make_segment = [&] {
    return create_segment(segment_bytes(topology.world_size, config), config.segments);
  };
  const Descriptor segment = descriptors.broadcast(make_segment, await);
  std::shared_ptr<Mapping> memory = Mapping::of(segment, InChild::kUnmapped);
  reserve_own_part(segment, topology, config);
  descriptors.meet(await);
  return memory;
}

}  // namespace

std::chrono::milliseconds formation_timeout(const CommunicatorOptions& options) {
  const auto asked = options.formation_timeout;
  return std::min(asked.count() > 0 ? asked : options.config.timeout, kMostTimeout);
}

Topology SharedMemoryCommunicator::discover(Store& store, const CommunicatorOptions& options) {
  check_rank(options);
  return discover_topology(store, {options.name, options.rank, options.world_size,
                                   options.config.host_id, build_of(options), options.attempt,
                                   formation_timeout(options), options.while_forming});
}

std::unique_ptr<Communicator> SharedMemoryCommunicator::make(Store& store,
                                                             const CommunicatorOptions& asked) {
  check_ranks_on_host(asked.world_size);
  const Topology topology = discover(store, asked);
  check_one_host(asked, topology);
  return form(store, asked, topology);
}

std::unique_ptr<SharedMemoryCommunicator> SharedMemoryCommunicator::form(
    Store& store, const CommunicatorOptions& asked, const Topology& topology) {
  CommunicatorOptions options = asked;
  Topology own = topology;
  Config& config = options.config;
  config.staging_bytes =
      round_up(std::max(config.staging_bytes, Staging::kLeastRingBytes), page_bytes());
  const auto timeout = formation_timeout(options);
  Liveness liveness(topology);
  Bootstrap bootstrap(store, options.name, topology, liveness, timeout);
  DescriptorExchange descriptors(topology);
  std::shared_ptr<Mapping> memory;
  try {
    adopt_layout(bootstrap, config, own);
    memory = share_memory(bootstrap, descriptors, liveness, own, config);
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
  std::unique_ptr<SharedMemoryCommunicator> communicator(new SharedMemoryCommunicator(
      Parts{options, own, std::move(descriptors), std::move(memory), std::move(liveness)}));
  communicator->barrier({timeout});
  return communicator;
}

SharedMemoryCommunicator::SharedMemoryCommunicator(Parts parts)
    : Communicator(parts.options.name, parts.topology),
      options_(parts.options),
      timeout_(parts.options.config.timeout),
      oversubscribed_(world_size() > parts.topology.local_cores),
      barrier_bytes_(oversubscribed_ ? kBarrierBytesAmongMany : kBarrierBytes),
      symmetric_from_(barrier_bytes_ / 4 / static_cast<size_t>(std::max(1, world_size() - 1))),
      event_group_(group_id(parts.options.name)),
      descriptors_(std::move(parts.descriptors)),
      memory_(std::move(parts.memory)),
      symmetric_(std::make_shared<SymmetricRegistry>()),
      lockstep_(
          memory_->data(), parts.topology, std::move(parts.liveness),
          {parts.options.name, options_.config.spin, oversubscribed_, parts.options.before_abort}),
      staging_(memory_->data() + control_bytes(world_size()), options_.config.staging_bytes),
      point_to_point_(memory_->data() + control_bytes(world_size()) +
                          Staging::bytes_for(world_size(), options_.config.staging_bytes),
                      topology(), lockstep_,
                      oversubscribed_ ? std::chrono::microseconds(0) : options_.config.spin) {}

void SharedMemoryCommunicator::check_ranks_on_host(int count) {
  if (count <= kMaxRanks) return;
  throw NotSupported(
      "too-many-local-ranks",
      "a group of " + std::to_string(count) + " ranks on one host is too large for shared memory.",
      "at most " + std::to_string(kMaxRanks) + " descriptors fit into one message.",
      "use fewer ranks per host, with more threads each.");
}

SharedMemoryCommunicator::~SharedMemoryCommunicator() { lockstep_.leave(); }

Call SharedMemoryCommunicator::begin(OpKind operation, size_t count, DataType dtype,
                                     const CollectiveOptions& options) const {
  lockstep_.check_usable();
  Call call{};
  call.signature.operation = operation;
  call.signature.dtype = dtype;
  call.signature.root = -1;
  call.signature.count = count;
  call.element_bytes = size_of(dtype);
  call.timeout = timeout_of(options);
  call.sleep_at_once = options.sleep_at_once;
  // Small tensors are quicker than a look at the clock: theirs is read while they wait, see
  // Lockstep.
  if (kDiagnosis && call.bytes() > kClockBytes) call.begin_ticks = event_ticks();
  return call;
}

std::chrono::milliseconds SharedMemoryCommunicator::timeout_of(
    const CollectiveOptions& options) const {
  return std::min(options.timeout.count() > 0 ? options.timeout : timeout_.load(), kMostTimeout);
}

void SharedMemoryCommunicator::enter(Call& call, const void* inline_data, size_t inline_bytes,
                                     const Lockstep::Meanwhile* meanwhile) {
  try {
    lockstep_.enter(call.signature, inline_data, inline_bytes,
                    {call.timeout, call.sleep_at_once, meanwhile});
  } catch (const MismatchError&) {
    staging_.restart();
    throw;
  }
  if (call.begin_ticks == 0) call.begin_ticks = lockstep_.posted_ticks();
  call.arrived_ticks = kDiagnosis && lockstep_.has_waited() ? event_ticks() : call.begin_ticks;
}

void SharedMemoryCommunicator::finish(const Call& call) const { finish(call, call.bytes()); }

void SharedMemoryCommunicator::finish(const Call& call, size_t bytes) const {
  if (!kDiagnosis) return;
  Event event;
  event.operation = call.signature.operation;
  event.latest_rank = static_cast<int16_t>(lockstep_.latest_rank());
  event.group = event_group_;
  event.sequence = lockstep_.sequence();
  event.bytes = bytes;
  event.begin_ns = call.begin_ticks;
  event.arrived_ns = call.arrived_ticks;
  event.end_ns = event_ticks();
  record(event);
}

bool SharedMemoryCommunicator::all_filled() const {
  for (int peer = 0; peer < world_size(); ++peer) {
    if (lockstep_.signature_of(peer).filled == 0) return false;
  }
  return true;
}

/// Whether all ranks announced a place in one and the same symmetric allocation.
bool SharedMemoryCommunicator::same_allocation(uint64_t Signature::*place) const {
  const Place own(lockstep_.signature_of(rank()).*place);
  if (!own.symmetric()) return false;
  for (int peer = 0; peer < world_size(); ++peer) {
    const Place other(lockstep_.signature_of(peer).*place);
    if (other.allocation() != own.allocation()) return false;
  }
  return true;
}

std::byte* SharedMemoryCommunicator::peer_address(int rank, uint64_t Signature::*place) const {
  return symmetric_->address_of(Place(lockstep_.signature_of(rank).*place), rank);
}

void SharedMemoryCommunicator::enter_for(const Signature& signature,
                                         const CollectiveOptions& options) {
  lockstep_.enter(signature, nullptr, 0, {timeout_of(options), options.sleep_at_once});
}

void SharedMemoryCommunicator::step_for(std::chrono::milliseconds timeout) {
  Lockstep::WaitPolicy policy{timeout};
  policy.counts_from_here = true;
  lockstep_.step(policy);
}

void SharedMemoryCommunicator::abort_for(const std::string& reason, int lost_rank, int origin) {
  lockstep_.abort(reason, lost_rank, origin);
}

void SharedMemoryCommunicator::barrier(const CollectiveOptions& options) {
  Call call = begin(OpKind::kBarrier, 0, DataType::kUInt8, options);
  enter(call);
  finish(call);
}

namespace {

void check_allocation(size_t bytes) {
  if (bytes <= Place::kMostBytes) return;
  throw InvalidArgument(
      "symmetric-too-large",
      "allocate_symmetric was called for " + std::to_string(bytes) + " bytes.",
      "a rank can have at most " + std::to_string(Place::kMostBytes) + " bytes in one allocation.",
      "split it into several allocations, or check for a negative size.");
}

}  // namespace

std::shared_ptr<Transfer> SharedMemoryCommunicator::send(const void* data, size_t bytes,
                                                         int destination, uint64_t tag,
                                                         const CollectiveOptions& options) {
  check_peer("send", "destination", destination, 0, world_size());
  lockstep_.check_in_creator();
  lockstep_.check_peers();
  check_message("send", data, bytes);
  auto* bytes_to_send = static_cast<std::byte*>(const_cast<void*>(data));  // only read
  return point_to_point_.send({bytes_to_send, bytes, destination, tag, timeout_of(options)});
}

std::shared_ptr<Transfer> SharedMemoryCommunicator::receive(void* data, size_t bytes, int source,
                                                            uint64_t tag,
                                                            const CollectiveOptions& options) {
  check_peer("receive", "source", source, kAnySource, world_size());
  lockstep_.check_in_creator();
  lockstep_.check_peers();
  check_message("receive", data, bytes);
  return point_to_point_.receive(
      {static_cast<std::byte*>(data), bytes, source, tag, timeout_of(options)});
}

std::shared_ptr<SymmetricMemory> SharedMemoryCommunicator::allocate_symmetric(size_t bytes) {
  Call call = begin(OpKind::kAllocate, bytes, DataType::kUInt8, {});
  check_allocation(bytes);
  enter(call);
  std::shared_ptr<Mapping> mapping;
  std::exception_ptr failure;
  try {
    mapping = share_allocation(call);
  } catch (const SystemError&) {
    failure = std::current_exception();
  }
  // Every rank publishes in its slot whether it could map the memory, so that all ranks decide in
  // the same way.
  staging_.next_turn(1);
  *staging_.slot(rank()) = std::byte{mapping != nullptr};
  step(call);
  finish(call);
  if (failure) std::rethrow_exception(failure);
  for (int peer = 0; peer < world_size(); ++peer) {
    if (*staging_.slot(peer) != std::byte{0}) continue;
    throw SystemError("symmetric-failed-on-peer",
                      "allocate_symmetric(" + std::to_string(bytes) + " bytes) in group '" +
                          name() + "' failed on " + topology().describe(peer) + ".",
                      "that rank could not map the memory; its own error says why.",
                      "raise the limits of that rank, or allocate less.");
  }
  return symmetric_->add(std::move(mapping), bytes, rank(), world_size());
}

/// One segment with a part for each rank. If a peer does not take part, the group ends.
std::shared_ptr<Mapping> SharedMemoryCommunicator::share_allocation(const Call& call) {
  const auto make_segment = [&] {
    const size_t part_bytes = round_up(std::max<size_t>(call.bytes(), 1), page_bytes());
    return create_segment(part_bytes * static_cast<size_t>(world_size()), options_.config.segments);
  };
  const Await await = [&](const std::vector<int>& peers, const Ready& ready) {
    lockstep_.await(peers.front(), ready, call.timeout);
  };
  try {
    const Descriptor segment = descriptors_.broadcast(make_segment, await);
    std::shared_ptr<Mapping> mapping = Mapping::of(segment, InChild::kPrivate);
    const size_t part_bytes = mapping->bytes() / static_cast<size_t>(world_size());
    mapping->populate(segment, part_bytes * static_cast<size_t>(rank()), part_bytes);
    return mapping;
  } catch (const PeerFailure& error) {
    lockstep_.abort(topology().name_of(rank()) + " gave up: " + reason_of(error.what()),
                    error.rank().value_or(-1));
    throw;
  }
}

std::shared_ptr<SymmetricMemory> SharedMemoryCommunicator::find_symmetric(const void* data,
                                                                          size_t bytes) const {
  return symmetric_->find(data, bytes);
}

std::shared_ptr<Signals> SharedMemoryCommunicator::make_signals() {
  auto memory = allocate_symmetric(SharedSignals::part_bytes(world_size()));
  const SharedSignals::Options options{
      name(), oversubscribed_ ? std::chrono::microseconds(0) : options_.config.spin,
      [this] { return timeout_of({}); }};
  return std::make_shared<SharedSignals>(std::move(memory), topology(), lockstep_, options);
}

std::shared_ptr<BucketReduction> SharedMemoryCommunicator::make_bucket_reduction(
    std::shared_ptr<SymmetricMemory> memory, const std::vector<BucketRange>& buckets,
    size_t report_bytes) {
  return SharedBucketReduction::make(*this, std::move(memory), buckets, report_bytes);
}

void SharedMemoryCommunicator::check_usable() const {
  lockstep_.check_in_creator();
  lockstep_.check_peers();
}

void SharedMemoryCommunicator::abort(const std::string& reason) { lockstep_.abort(reason); }

std::unique_ptr<Communicator> SharedMemoryCommunicator::shrink(const std::vector<int>& excluded,
                                                               Store& store) {
  CommunicatorOptions options = options_of_shrunk(*this, options_, excluded);
  options.config.timeout = timeout_;
  return make(store, options);
}

}  // namespace farandole::comm::shm
