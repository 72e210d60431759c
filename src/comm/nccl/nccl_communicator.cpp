// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <utility>

#include "comm/arguments.h"
#include "comm/nccl_loader.h"
#include "comm/shm/bootstrap/liveness.h"
#include "comm/shm/shared_memory_communicator.h"
#include "comm/shrink.h"
#include "farandole/error.h"

namespace farandole::comm::nccl {
namespace {

using std::chrono::milliseconds;

/// How long a rank that destroys its communicator waits for the others to do the same.
constexpr milliseconds kPatience{2000};

size_t index_of(int number) { return static_cast<size_t>(number); }

const std::byte* at(const void* data, size_t bytes) {
  return static_cast<const std::byte*>(data) + bytes;
}
std::byte* at(void* data, size_t bytes) { return static_cast<std::byte*>(data) + bytes; }

cudaStream_t stream_of(const CollectiveOptions& options) {
  return static_cast<cudaStream_t>(options.stream);
}

/// A send or receive that is enqueued: the stream tells when it is over.
class Enqueued final : public Transfer {
 public:
  explicit Enqueued(int peer) : peer_(peer) {}
  bool is_done() override { return true; }
  void wait(milliseconds) override {}
  void when_done(std::function<void()> wake) override { wake(); }
  int peer() const override { return peer_; }

 private:
  int peer_;
};

ncclConfig_t config_of(const std::string& name) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.splitShare = 1;
  config.commName = name.c_str();
  return config;
}

/// What ranks tell each other before they connect.
struct Hello {
  int32_t version;  ///< of NCCL
  int32_t has_failed;
  ncclUniqueId id;  ///< of rank 0
};

/// Elements that all ranks give, by rank.
template <class T>
std::vector<T> gathered(Communicator& control, const T& mine, milliseconds timeout) {
  std::vector<T> all(index_of(control.world_size()));
  CollectiveOptions options;
  options.timeout = timeout;
  control.all_gather(&mine, all.data(), sizeof(T), DataType::kUInt8, options);
  return all;
}

/// The same NCCL on all ranks, and the id under which they connect. Collective; all ranks throw or
/// none does.
ncclUniqueId agree(const std::string& library, const std::string& group, Communicator& control,
                   milliseconds timeout) {
  Hello mine{};
  std::exception_ptr failure;
  try {
    const NcclApi& api = NcclApi::get(library);
    mine.version = api.version;
    if (control.rank() == 0 && api.GetUniqueId(&mine.id) != ncclSuccess) {
      const char* const last = api.GetLastError(nullptr);
      refuse_nccl("ncclGetUniqueId failed: " + std::string(last == nullptr ? "" : last) + ".");
    }
  } catch (const Error&) {
    failure = std::current_exception();
    mine.has_failed = 1;
  }
  const std::vector<Hello> all = gathered(control, mine, timeout);
  if (failure) std::rethrow_exception(failure);
  for (int rank = 0; rank < control.world_size(); ++rank) {
    const Hello& theirs = all[index_of(rank)];
    if (theirs.has_failed != 0) {
      throw NotSupported(
          "nccl-unavailable-elsewhere",
          "group '" + group + "' cannot use NCCL: " + control.topology().describe(rank) +
              " has none.",
          "all ranks of a group on accelerators need it; that rank's own error says why.",
          "install the same torch with CUDA on all hosts.", control.topology().fault_of({rank}));
    }
  }
  for (int rank = 0; rank < control.world_size(); ++rank) {
    const int version = all[index_of(rank)].version;
    if (version == all.front().version) continue;
    throw MismatchError(
        "nccl-versions", "the ranks of group '" + group + "' have different versions of NCCL.",
        control.topology().describe(0) + " has " + version_text(all.front().version) + ", and " +
            control.topology().describe(rank) + " has " + version_text(version) + ".",
        "install the same torch on all hosts.", control.topology().fault_of({rank}));
  }
  return all.front().id;
}

void check_split(const Communicator& group, const std::vector<int>& ranks,
                 const Communicator* control) {
  std::vector<int> sorted = ranks;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  const bool in_range =
      sorted.empty() || (sorted.front() >= 0 && sorted.back() < group.world_size());
  const auto own = std::find(ranks.begin(), ranks.end(), group.rank());
  const bool fits = control == nullptr
                        ? ranks.empty()
                        : own != ranks.end() && control->rank() == own - ranks.begin() &&
                              index_of(control->world_size()) == ranks.size();
  if (!twice && in_range && fits) return;
  throw InvalidArgument(
      "split-ranks",
      "split of group '" + group.name() + "' on rank " + std::to_string(group.rank()) +
          " got ranks that do not fit.",
      "they must be ranks of the group, none twice, this one among them, and those of the "
      "communicator on host memory in its order; on a rank that gets no part there are none.",
      "pass the same list on all ranks of it, and none on the others.");
}

}  // namespace

// ---- Forming and ending

std::unique_ptr<Communicator> NcclCommunicator::make(Store& store,
                                                     const CommunicatorOptions& asked) {
  std::shared_ptr<Communicator> control = asked.control;
  if (!control) {
    control = make_communicator(backend_for(MemoryKind::kHost, asked.config.backend), store, asked);
  }
  return form(asked, control);
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::form(
    const CommunicatorOptions& options, const std::shared_ptr<Communicator>& control) {
  const milliseconds timeout = shm::formation_timeout(options);
  const ncclUniqueId id = agree(options.config.nccl_library, options.name, *control, timeout);
  const NcclApi& api = NcclApi::get(options.config.nccl_library);
  std::unique_ptr<NcclCommunicator> made(new NcclCommunicator(api, options, control));
  ncclConfig_t config = config_of(made->name());
  made->handle_->open({"ncclCommInitRankConfig", timeout}, [&](ncclComm_t* comm) {
    return api.CommInitRankConfig(comm, made->world_size(), id, made->rank(), &config);
  });
  return made;
}

NcclCommunicator::NcclCommunicator(const NcclApi& api, CommunicatorOptions options,
                                   const std::shared_ptr<Communicator>& control)
    : DeviceCommunicator(options.name, control->topology(), control),
      options_(std::move(options)),
      timeout_(options_.config.timeout),
      handle_(std::make_shared<Handle>(
          api, "group '" + name() + "' on " + topology().own_position(), control)) {
  options_.control = nullptr;  // a shrunk group has another one
  options_.while_forming = nullptr;
}

NcclCommunicator::~NcclCommunicator() {
  if (fork_guard_.in_creator()) {
    handle_->close(kPatience);
  } else {
    // The parent's. NOLINTNEXTLINE(bugprone-unhandled-exception-at-new)
    new std::shared_ptr<Handle>(std::move(handle_));
    static_cast<void>(barrier_byte_.release());
  }
}

std::unique_ptr<NcclCommunicator> NcclCommunicator::child_of(
    const std::shared_ptr<Communicator>& control) const {
  CommunicatorOptions options = options_;
  options.name = control->name();
  options.rank = control->rank();
  options.world_size = control->world_size();
  options.config.timeout = timeout_;
  return std::unique_ptr<NcclCommunicator>(
      new NcclCommunicator(api(), std::move(options), control));
}

std::unique_ptr<DeviceCommunicator> NcclCommunicator::split(const std::vector<int>& ranks,
                                                            std::shared_ptr<Communicator> control) {
  check_usable();
  check_split(*this, ranks, control.get());
  auto child = control ? child_of(control) : nullptr;
  Handle none(api(), call_text("split"), this->control());
  ncclConfig_t config = config_of(child ? child->name() : name());
  const int color =
      ranks.empty() ? NCCL_SPLIT_NOCOLOR : *std::min_element(ranks.begin(), ranks.end());
  const int key = child ? child->rank() : 0;
  handle_->derive(child ? *child->handle_ : none, {"ncclCommSplit", timeout_of({})},
                  [&](ncclComm_t parent, ncclComm_t* made) {
                    return api().CommSplit(parent, color, key, made, &config);
                  });
  return child;
}

/// A communicator that is whole keeps its connections; a broken one can only be made anew.
std::unique_ptr<Communicator> NcclCommunicator::shrink(const std::vector<int>& excluded,
                                                       Store& store) {
  std::shared_ptr<Communicator> rest = control()->shrink(excluded, store);
  const bool shrinks = api().CommShrink != nullptr && !handle_->is_over();
  const std::vector<char> all =
      gathered(*rest, static_cast<char>(shrinks), shm::formation_timeout(options_));
  if (!std::all_of(all.begin(), all.end(), [](char each) { return each != 0; })) {
    handle_->abort();
    CommunicatorOptions options = options_of_shrunk(*this, options_, excluded);
    options.config.timeout = timeout_;
    return form(options, rest);
  }
  auto child = child_of(rest);
  ncclConfig_t config = config_of(child->name());
  std::vector<int> list = excluded;
  handle_->derive(*child->handle_, {"ncclCommShrink", timeout_of({})},
                  [&](ncclComm_t parent, ncclComm_t* made) {
                    return api().CommShrink(parent, list.data(), static_cast<int>(list.size()),
                                            made, &config, NCCL_SHRINK_DEFAULT);
                  });
  return child;
}

void NcclCommunicator::check_usable() const {
  if (!fork_guard_.in_creator()) control()->check_usable();  // throws
  handle_->check_open();
  try {
    control()->check_usable();
  } catch (const CommError&) {
    handle_->abort();
    throw;
  }
}

void NcclCommunicator::check_alive() const {
  check_usable();
  try {
    control()->check_alive();
  } catch (const CommError&) {
    handle_->give_up(std::current_exception());
    throw;
  }
  handle_->check();
}

void NcclCommunicator::abort(const std::string& reason) {
  control()->abort(reason);
  handle_->abort();
}

void NcclCommunicator::set_timeout(milliseconds timeout) { timeout_.store(timeout); }

milliseconds NcclCommunicator::timeout_of(const CollectiveOptions& options) const {
  return std::min(options.timeout.count() > 0 ? options.timeout : timeout_.load(),
                  milliseconds(shm::kMostTimeout));
}

std::string NcclCommunicator::call_text(const char* operation) const {
  return std::string(operation) + " in group '" + name() + "' on " + topology().own_position();
}

// ---- Reductions

template <class Call>
void NcclCommunicator::run(const char* function, const CollectiveOptions& options,
                           const Call& call) {
  handle_->run({function, timeout_of(options)}, call);
}

template <class Call>
void NcclCommunicator::reduce_with(const char* function, const Reduction& reduction, DataType dtype,
                                   const CollectiveOptions& options, const Call& call) {
  run(function, options, [&](ncclComm_t comm) {
    ncclRedOp_t op = reduction.op;
    if (options.factor != 1) {
      const ncclResult_t result = premultiplied_sums_.find(api(), comm, dtype, options.factor, &op);
      if (result != ncclSuccess) return result;
    }
    return call(comm, op);
  });
}

void NcclCommunicator::all_reduce(const void* input, void* output, size_t count, DataType dtype,
                                  ReduceOp op, const CollectiveOptions& options) {
  check_usable();
  check_all_reduce(input, output, count, dtype, op);
  const Reduction by = reduction_of(dtype, op, options.factor, call_text("all_reduce"));
  if (count == 0) return;
  reduce_with("ncclAllReduce", by, dtype, options, [&](ncclComm_t comm, ncclRedOp_t nccl_op) {
    return api().AllReduce(input, output, count, by.dtype, nccl_op, comm, stream_of(options));
  });
}

void NcclCommunicator::reduce_scatter(const void* input, void* output, size_t count, DataType dtype,
                                      ReduceOp op, const CollectiveOptions& options) {
  check_usable();
  check_reduce_scatter(topology(), input, output, count, dtype, op);
  const Reduction by = reduction_of(dtype, op, options.factor, call_text("reduce_scatter"));
  if (count == 0) return;
  reduce_with("ncclReduceScatter", by, dtype, options, [&](ncclComm_t comm, ncclRedOp_t nccl_op) {
    return api().ReduceScatter(input, output, count, by.dtype, nccl_op, comm, stream_of(options));
  });
}

void NcclCommunicator::reduce(const void* input, void* output, size_t count, DataType dtype,
                              ReduceOp op, int root, const CollectiveOptions& options) {
  check_usable();
  check_reduce(topology(), input, output, count, dtype, op, root);
  const Reduction by = reduction_of(dtype, op, options.factor, call_text("reduce"));
  if (count == 0) return;
  reduce_with("ncclReduce", by, dtype, options, [&](ncclComm_t comm, ncclRedOp_t nccl_op) {
    return api().Reduce(input, rank() == root ? output : nullptr, count, by.dtype, nccl_op, root,
                        comm, stream_of(options));
  });
}

// ---- Moves

void NcclCommunicator::all_gather(const void* input, void* output, size_t count, DataType dtype,
                                  const CollectiveOptions& options) {
  check_usable();
  check_all_gather(topology(), input, output, count, dtype);
  if (count == 0) return;
  run("ncclAllGather", options, [&](ncclComm_t comm) {
    return api().AllGather(input, output, count * size_of(dtype), ncclInt8, comm,
                           stream_of(options));
  });
}

void NcclCommunicator::broadcast(void* buffer, size_t count, DataType dtype, int root,
                                 const CollectiveOptions& options) {
  check_usable();
  check_broadcast(topology(), buffer, count, dtype, root);
  if (count == 0) return;
  run("ncclBroadcast", options, [&](ncclComm_t comm) {
    return api().Broadcast(buffer, buffer, count * size_of(dtype), ncclInt8, root, comm,
                           stream_of(options));
  });
}

void NcclCommunicator::gather(const void* input, void* output, size_t count, DataType dtype,
                              int root, const CollectiveOptions& options) {
  check_usable();
  check_gather(topology(), input, output, count, dtype, root);
  const size_t bytes = count * size_of(dtype);
  if (bytes == 0) return;
  handle_->begin_group();
  if (rank() == root) {
    for (int peer = 0; peer < world_size(); ++peer) {
      std::byte* const block = at(output, index_of(peer) * bytes);
      if (block == input) continue;
      receive_bytes(block, bytes, peer, options);
      if (peer == root) send_bytes(input, bytes, root, options);
    }
  } else {
    send_bytes(input, bytes, root, options);
  }
  handle_->end_group(timeout_of(options));
}

void NcclCommunicator::scatter(const void* input, void* output, size_t count, DataType dtype,
                               int root, const CollectiveOptions& options) {
  check_usable();
  check_scatter(topology(), input, output, count, dtype, root);
  const size_t bytes = count * size_of(dtype);
  if (bytes == 0) return;
  handle_->begin_group();
  if (rank() == root) {
    for (int peer = 0; peer < world_size(); ++peer) {
      const std::byte* const block = at(input, index_of(peer) * bytes);
      if (block == output) continue;
      send_bytes(block, bytes, peer, options);
      if (peer == root) receive_bytes(output, bytes, root, options);
    }
  } else {
    receive_bytes(output, bytes, root, options);
  }
  handle_->end_group(timeout_of(options));
}

void NcclCommunicator::all_to_all(const void* input, void* output, size_t count, DataType dtype,
                                  const CollectiveOptions& options) {
  check_usable();
  check_all_to_all(topology(), input, output, count, dtype);
  const size_t bytes = count * size_of(dtype);
  if (bytes == 0) return;
  handle_->begin_group();
  for (int peer = 0; peer < world_size(); ++peer) {
    send_bytes(at(input, index_of(peer) * bytes), bytes, peer, options);
    receive_bytes(at(output, index_of(peer) * bytes), bytes, peer, options);
  }
  handle_->end_group(timeout_of(options));
}

void NcclCommunicator::all_to_all_v(const void* input, const size_t* send_counts, void* output,
                                    const size_t* receive_counts, DataType dtype,
                                    const CollectiveOptions& options) {
  check_usable();
  check_all_to_all_v(topology(), input, send_counts, output, receive_counts, dtype);
  const size_t size = size_of(dtype);
  size_t sent = 0;
  size_t received = 0;
  handle_->begin_group();
  for (int peer = 0; peer < world_size(); ++peer) {
    const size_t sends = send_counts[peer] * size;
    const size_t receives = receive_counts[peer] * size;
    if (sends > 0) send_bytes(at(input, sent), sends, peer, options);
    if (receives > 0) receive_bytes(at(output, received), receives, peer, options);
    sent += sends;
    received += receives;
  }
  handle_->end_group(timeout_of(options));
}

void NcclCommunicator::barrier(const CollectiveOptions& options) {
  check_usable();
  if (!barrier_byte_) {
    auto made = std::make_unique<RegisteredMemory>(handle_, 1);
    if (made->data() == nullptr) throw_no_memory(1, rank());
    barrier_byte_ = std::move(made);
  }
  run("ncclAllReduce", options, [&](ncclComm_t comm) {
    return api().AllReduce(barrier_byte_->data(), barrier_byte_->data(), 1, ncclUint8, ncclMax,
                           comm, stream_of(options));
  });
}

// ---- Messages

void NcclCommunicator::send_bytes(const void* data, size_t bytes, int to,
                                  const CollectiveOptions& options) {
  run("ncclSend", options, [&](ncclComm_t comm) {
    return api().Send(data, bytes, ncclInt8, to, comm, stream_of(options));
  });
}

void NcclCommunicator::receive_bytes(void* data, size_t bytes, int from,
                                     const CollectiveOptions& options) {
  run("ncclRecv", options, [&](ncclComm_t comm) {
    return api().Recv(data, bytes, ncclInt8, from, comm, stream_of(options));
  });
}

std::shared_ptr<Transfer> NcclCommunicator::send(const void* data, size_t bytes, int destination,
                                                 uint64_t, const CollectiveOptions& options) {
  check_usable();
  check_peer("send", "destination", destination, 0, world_size());
  check_message("send", data, bytes);
  if (bytes > 0) send_bytes(data, bytes, destination, options);
  return std::make_shared<Enqueued>(destination);
}

std::shared_ptr<Transfer> NcclCommunicator::receive(void* data, size_t bytes, int source, uint64_t,
                                                    const CollectiveOptions& options) {
  check_usable();
  check_peer("receive", "source", source, kAnySource, world_size());
  check_message("receive", data, bytes);
  if (source == kAnySource) {
    throw NotSupported("nccl-any-source", call_text("recv") + " was to take a message of any rank.",
                       "NCCL receives from a rank that is known beforehand.",
                       "pass the source, or receive on the CPU.");
  }
  if (bytes > 0) receive_bytes(data, bytes, source, options);
  return std::make_shared<Enqueued>(source);
}

void NcclCommunicator::begin_group() {
  check_usable();
  handle_->begin_group();
}

void NcclCommunicator::end_group(const CollectiveOptions& options) {
  handle_->end_group(timeout_of(options));
}

// ---- Memory

void NcclCommunicator::throw_no_memory(size_t bytes, int rank) const {
  throw SystemError("device-memory",
                    call_text("allocation") + " of " + std::to_string(bytes) + " bytes failed.",
                    "there was no memory left on the device of " + topology().describe(rank) + ".",
                    "free memory of that device (torch.cuda.empty_cache()), or ask for less.",
                    topology().fault_of({rank}));
}

std::shared_ptr<DeviceMemory> NcclCommunicator::allocate(size_t bytes,
                                                         const CollectiveOptions& options) {
  check_usable();
  const milliseconds timeout = timeout_of(options);
  auto made = std::make_shared<RegisteredMemory>(handle_, bytes);
  struct Allocated {
    uint64_t bytes;
    uint64_t has_failed;
  };
  const std::vector<Allocated> all =
      gathered(*control(), Allocated{bytes, made->data() == nullptr ? uint64_t{1} : 0}, timeout);
  for (int rank = 0; rank < world_size(); ++rank) {
    const Allocated& theirs = all[index_of(rank)];
    if (theirs.bytes == bytes) continue;
    throw MismatchError(
        "device-memory-sizes",
        call_text("allocate") + " was called for " + std::to_string(bytes) + " bytes.",
        topology().describe(rank) + " asks for " + std::to_string(theirs.bytes) + " bytes.",
        "ask for the same size on all ranks.", topology().fault_of({rank}));
  }
  for (int rank = 0; rank < world_size(); ++rank) {
    if (all[index_of(rank)].has_failed != 0) throw_no_memory(bytes, rank);
  }
  made->register_it(timeout);
  return made;
}

}  // namespace farandole::comm::nccl
