// SPDX-License-Identifier: Apache-2.0
#include "process_group/window.h"

#ifdef C10D_BACKEND_HAS_WINDOW

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/from_blob.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "farandole/error.h"
#include "farandole/process_group/process_group.h"
#include "process_group/flat_tensor.h"

namespace farandole {
namespace {

constexpr Operation operation(const char* name, const char* title) {
  return {c10d::OpType::UNKNOWN, name, title};
}

constexpr Operation kNewWindow = operation("new_window", "farandole:new_window");
constexpr Operation kRegister = operation("tensor_register", "farandole:tensor_register");
constexpr Operation kDeregister = operation("tensor_deregister", "farandole:tensor_deregister");
constexpr Operation kPut = operation("put", "farandole:put");
constexpr Operation kMap = operation("map_remote_tensor", "farandole:map_remote_tensor");
constexpr Operation kSignal = operation("signal", "farandole:signal");
constexpr Operation kWaitSignal = operation("wait_signal", "farandole:wait_signal");
constexpr Operation kGetAttr = operation("get_attr", "farandole:get_attr");

Call collective(const Operation& operation) {
  return {operation, {}, /*async=*/false, kNoTimeout, /*cost=*/{}};
}

int check_rank(const Caller& caller, int64_t rank) {
  check_peer(caller, static_cast<int>(std::clamp<int64_t>(rank, -1, caller.world_size)));
  return static_cast<int>(rank);
}

[[noreturn]] void refuse_elsewhere(const Caller& caller) {
  throw InvalidArgument(
      "window-memory",
      caller.describe() + " got a tensor that is not in the group's symmetric memory.",
      "peers write directly into a window, and they map no other memory of this rank.",
      "make the tensor with farandole.symmetric_empty(..., group=group).");
}

}  // namespace

/// What each rank has registered, as this one sees it.
struct WindowFarandole::Registration {
  struct Target {
    int64_t offset_bytes;  ///< in that rank's part of the allocation
    at::ScalarType dtype;
    std::vector<int64_t> sizes;

    int64_t numel() const { return c10::multiply_integers(sizes); }
  };
  std::shared_ptr<comm::SymmetricMemory> memory;
  std::vector<Target> targets;  ///< by rank
  at::Tensor owned;             ///< this rank's tensor, or undefined

  std::byte* address_of(int rank) const {
    return static_cast<std::byte*>(memory->peer(rank)) +
           targets[static_cast<size_t>(rank)].offset_bytes;
  }
};

WindowFarandole::WindowFarandole(const std::shared_ptr<GroupCommunicators>& communicators)
    : group_(communicators->group()),
      rank_(communicators->rank()),
      world_size_(communicators->host()->world_size()),
      communicators_(communicators) {
  communicators->launch(
      collective(kNewWindow), [this](comm::Communicator& communicator, const auto&) {
        signals_ = shared_memory_of(caller(kNewWindow), communicator).make_signals();
      });
}

WindowFarandole::~WindowFarandole() = default;

std::shared_ptr<GroupCommunicators> WindowFarandole::communicators() const {
  if (auto alive = communicators_.lock()) return alive;
  throw AbortedError("window-after-shutdown",
                     "a window of group '" + group_ + "' was used after its group had ended.",
                     "the group was shut down or reconfigured on this rank.",
                     "make a new window with new_window() on the current group.");
}

Caller WindowFarandole::caller(const Operation& operation) const {
  return {operation.name, group_, rank_, world_size_};
}

const WindowFarandole::Registration& WindowFarandole::registration(const Caller& caller) const {
  if (registration_) return *registration_;
  throw InvalidArgument("window-without-tensor",
                        caller.describe() + " was called on a window without a tensor.",
                        "no tensor was registered, or it was deregistered.",
                        "call tensor_register() on every rank first.");
}

/// The numbers of each rank, of which there may be as many as it likes.
std::vector<std::vector<int64_t>> WindowFarandole::exchange(const Operation& operation,
                                                            const std::vector<int64_t>& own) const {
  std::vector<std::vector<int64_t>> all(static_cast<size_t>(world_size_));
  communicators()->launch(
      collective(operation), [&](comm::Communicator& communicator, const auto& options) {
        constexpr comm::DataType kInt64 = comm::DataType::kInt64;
        std::vector<int64_t> counts(all.size());
        const auto count = static_cast<int64_t>(own.size());
        communicator.all_gather(&count, counts.data(), 1, kInt64, options);
        const auto most = static_cast<size_t>(*std::max_element(counts.begin(), counts.end()));
        std::vector<int64_t> padded = own;
        padded.resize(most);
        std::vector<int64_t> joined(most * all.size());
        communicator.all_gather(padded.data(), joined.data(), most, kInt64, options);
        for (size_t rank = 0; rank < all.size(); ++rank) {
          const auto begin = joined.begin() + static_cast<std::ptrdiff_t>(rank * most);
          all[rank].assign(begin, begin + counts[rank]);
        }
      });
  return all;
}

void WindowFarandole::tensor_register(const at::Tensor& tensor, bool owning) {
  const Caller by = caller(kRegister);
  check_host_tensor(by, tensor);
  check_output(by, tensor);
  if (registration_) {
    throw InvalidArgument("window-has-tensor",
                          by.describe() + " was called on a window that has a tensor.",
                          "a window holds one tensor of each rank at a time.",
                          "call tensor_deregister() on every rank first, or make another window.");
  }
  if (!is_flat(tensor)) {
    throw InvalidArgument(
        "window-not-contiguous",
        by.describe() + " got a tensor whose elements are not in row-major order.",
        "peers compute addresses from offsets in row-major order.",
        "register a contiguous tensor in symmetric memory.");
  }
  auto made = std::make_unique<Registration>();
  const auto communicator = communicators()->host();
  made->memory =
      shared_memory_of(by, *communicator).find_symmetric(tensor.data_ptr(), tensor.nbytes());
  std::vector<int64_t> own{0, 0, static_cast<int64_t>(tensor.scalar_type())};
  if (made->memory) {
    own[0] = static_cast<int64_t>(made->memory->number());
    own[1] =
        static_cast<std::byte*>(tensor.data_ptr()) - static_cast<std::byte*>(made->memory->local());
  }
  own.insert(own.end(), tensor.sizes().begin(), tensor.sizes().end());
  const auto all = exchange(kRegister, own);
  if (!made->memory) refuse_elsewhere(by);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const std::vector<int64_t>& other = all[rank];
    if (other[0] != own[0]) {
      throw MismatchError(
          "window-allocations",
          by.describe() + " got a tensor of a different allocation than rank " +
              std::to_string(rank) + ".",
          other[0] == 0
              ? "the tensor of that rank is not in symmetric memory at all."
              : "the tensors of a window must come from one symmetric_empty() of all ranks.",
          "register the tensors that one call of symmetric_empty() returned, or parts of them.",
          {{static_cast<int>(rank)}, kRegister.name});
    }
    made->targets.push_back(
        {other[1], static_cast<at::ScalarType>(other[2]), {other.begin() + 3, other.end()}});
  }
  if (owning) made->owned = tensor;
  registration_ = std::move(made);
}

void WindowFarandole::tensor_deregister() {
  registration(caller(kDeregister));
  communicators()->launch(
      collective(kDeregister),
      [](comm::Communicator& communicator, const auto& options) { communicator.barrier(options); });
  registration_.reset();
}

WindowFarandole::Work WindowFarandole::put(const at::Tensor& tensor, int64_t dstRank,
                                           int64_t targetOffsetNelems, bool asyncOp,
                                           const c10d::PutOptions& opts) {
  const Caller by = caller(kPut);
  check_host_tensor(by, tensor);
  const int rank = check_rank(by, dstRank);
  check_no_hints(by, opts.hints);
  const Registration& registered = registration(by);
  const Registration::Target& target = registered.targets[static_cast<size_t>(rank)];
  if (tensor.scalar_type() != target.dtype) {
    throw InvalidArgument(
        "window-dtype",
        by.describe() + " got a tensor of type " + c10::toString(tensor.scalar_type()) +
            " for a window of type " + c10::toString(target.dtype) + ".",
        "elements travel as they are; nothing casts them.",
        "cast the tensor to the dtype that rank " + std::to_string(rank) + " has registered.");
  }
  if (targetOffsetNelems < 0 || targetOffsetNelems > target.numel() - tensor.numel()) {
    throw InvalidArgument("window-offset",
                          by.describe() + " got " + std::to_string(tensor.numel()) +
                              " elements for offset " + std::to_string(targetOffsetNelems) + ".",
                          "the window of rank " + std::to_string(rank) + " has " +
                              std::to_string(target.numel()) + " elements.",
                          "pass an offset, counted in elements, at which the tensor fits.");
  }
  std::byte* to = registered.address_of(rank) +
                  targetOffsetNelems * static_cast<int64_t>(tensor.element_size());
  return communicators()->launch_one_sided(
      {kPut, {tensor}, asyncOp, opts.timeout, /*cost=*/{}},
      [tensor, to, memory = registered.memory](comm::Communicator& communicator, const auto&) {
        communicator.check_usable();
        const at::Tensor flat = flat_input(tensor);
        if (flat.nbytes() != 0) std::memmove(to, flat.const_data_ptr(), flat.nbytes());
      });
}

at::Tensor WindowFarandole::map_remote_tensor(int64_t rank) {
  const Caller by = caller(kMap);
  const int peer = check_rank(by, rank);
  const Registration& registered = registration(by);
  communicators();  // throws
  const Registration::Target& target = registered.targets[static_cast<size_t>(peer)];
  return at::from_blob(
      registered.address_of(peer), target.sizes,
      [memory = registered.memory](void*) mutable { memory.reset(); },
      at::TensorOptions().dtype(target.dtype));
}

WindowFarandole::Work WindowFarandole::signal(int64_t peerRank, bool asyncOp,
                                              const c10d::SignalOptions& opts) {
  const Caller by = caller(kSignal);
  const int peer = check_rank(by, peerRank);
  check_no_hints(by, opts.hints);
  return communicators()->launch_one_sided(
      {kSignal, {}, asyncOp, opts.timeout, /*cost=*/{}},
      [peer, signals = signals_](comm::Communicator&, const auto&) { signals->signal(peer); });
}

WindowFarandole::Work WindowFarandole::wait_signal(int64_t peerRank, bool asyncOp,
                                                   const c10d::WaitSignalOptions& opts) {
  const Caller by = caller(kWaitSignal);
  const int peer = check_rank(by, peerRank);
  check_no_hints(by, opts.hints);
  return communicators()->launch_one_sided(
      {kWaitSignal, {}, asyncOp, opts.timeout, /*cost=*/{}},
      [peer, signals = signals_](comm::Communicator&, const auto& options) {
        signals->wait(peer, options);
      });
}

c10d::WindowAttr WindowFarandole::get_attr(int64_t peerRank) {
  check_rank(caller(kGetAttr), peerRank);
  return {c10d::WindowAccessType::UNIFIED};
}

c10::intrusive_ptr<c10d::Window> ProcessGroupFarandole::new_window(
    const std::optional<at::Tensor>& tensor) {
  auto window = c10::make_intrusive<WindowFarandole>(communicators());
  if (tensor) window->tensor_register(*tensor, /*owning=*/true);
  return window;
}

}  // namespace farandole

#endif
