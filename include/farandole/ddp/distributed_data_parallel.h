// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "farandole/ddp/outputs.h"
#include "farandole/ddp/replica.h"
#include "farandole/ddp/sync_batch_norm.h"
#include "farandole/export.h"

namespace farandole {

/// See ReplicaOptions for the fields.
using DistributedDataParallelOptions = ReplicaOptions;

/// Parameters or buffers of a module and its submodules, each once.
FARANDOLE_API NamedTensors named_parameters_of(const torch::nn::Module& module);
FARANDOLE_API NamedTensors named_buffers_of(const torch::nn::Module& module);
/// `options` with the names of embedding weights that have sparse gradients.
FARANDOLE_API ReplicaOptions with_sparse_embeddings(ReplicaOptions options,
                                                    const torch::nn::Module& module);

/// During its lifetime forward passes of `replica` are not synchronized: their gradients stay local
/// and accumulate. Threads: the thread of the forward.
class FARANDOLE_API NoSync {
 public:
  explicit NoSync(Replica& replica) : replica_(&replica), before_(replica.synchronizes()) {
    replica.set_synchronize(false);
  }
  ~NoSync() {
    if (replica_ != nullptr) replica_->set_synchronize(before_);
  }
  NoSync(NoSync&& other) noexcept
      : replica_(std::exchange(other.replica_, nullptr)), before_(other.before_) {}
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;
  NoSync& operator=(NoSync&&) = delete;

 private:
  Replica* replica_;
  bool before_;
};

/// A module whose gradients are averaged over the ranks of a group while backward runs.
///
///   auto world = farandole::init_process_group();
///   auto net = std::make_shared<Net>();
///   farandole::DistributedDataParallel ddp(net, world);
///   torch::optim::SGD optimizer(ddp.parameters(), 0.1);
///   loss_of(ddp.forward(x), y).backward();  // gradients are averages now
///
/// `Net` is a class derived from torch::nn::Module (held by a shared_ptr), a module holder
/// (TORCH_MODULE, torch::nn::Sequential), or torch::nn::AnyModule; it is deduced. The constructor
/// compares the modules of all ranks and sends rank 0's parameters and buffers to all. forward()
/// may return tensors nested in the types that outputs.h lists.
///
/// Errors: InvalidArgument (nothing to train; modules differ), BackwardError at the end of
/// backward, and every CommError of the group. Threads: forward and backward as in torch, one at a
/// time. It must live until the last backward through it has ended.
template <class Net>
class DistributedDataParallel {
  static constexpr bool kIsModule = std::is_base_of_v<torch::nn::Module, Net>;
  static constexpr bool kIsAny = std::is_same_v<Net, torch::nn::AnyModule>;

 public:
  /// The type that holds the module.
  using Holder = std::conditional_t<kIsModule, std::shared_ptr<Net>, Net>;
  using Options = DistributedDataParallelOptions;

  /// `group`: with any backend; the default group if empty. Collective.
  explicit DistributedDataParallel(Holder module, const Group& group = {}, Options options = {})
      : module_(std::move(module)),
        replica_(named_parameters_of(plain()), named_buffers_of(plain()), group,
                 with_sparse_embeddings(std::move(options), plain())) {
    set_pass_weight(plain(), replica_.pass_weight());
  }
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  /// Runs the module's forward. Backward from its outputs is synchronized.
  template <class... Inputs>
  auto forward(Inputs&&... inputs) {
    RECORD_USER_SCOPE("DistributedDataParallel.forward");
    replica_.before_forward();
    try {
      auto output = run(std::forward<Inputs>(inputs)...);
      replica_.after_forward(tensors_of(output));
      return output;
    } catch (...) {
      replica_.forward_failed();
      throw;
    }
  }
  template <class... Inputs>
  auto operator()(Inputs&&... inputs) {
    return forward(std::forward<Inputs>(inputs)...);
  }
  /// The wrapper itself, so that ddp->forward(x) is synchronized.
  DistributedDataParallel* operator->() { return this; }

  /// The wrapped module.
  Holder& module() { return module_; }
  const Holder& module() const { return module_; }
  std::vector<at::Tensor> parameters() const { return plain().parameters(); }
  void train(bool on = true) { plain().train(on); }
  void eval() { plain().eval(); }

  /// Gradient accumulation: passes whose forward runs during the lifetime of the result are local.
  [[nodiscard]] NoSync no_sync() { return NoSync(replica_); }
  /// The loss of the next passes is a mean over `weight` items of this rank. Gradients become
  /// sum(w * g) / sum(w) over ranks and accumulated passes, instead of a plain average. Call it
  /// before each backward, on every rank; nullopt switches weights off.
  void set_loss_weight(std::optional<double> weight) { replica_.set_loss_weight(weight); }
  /// Passes buckets to `hook` from the next backward on.
  void register_comm_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
    replica_.set_hook(std::move(hook));
  }
  /// Call it on a rank whose inputs have ended. It takes part with nothing to add in every backward
  /// of the other ranks and calls `step` (the optimizer's) after each, until all ranks are here. It
  /// does not step after a backward that ended in an error on the other ranks; they must not step
  /// either. Parameters stay equal on all ranks. Collective.
  template <class Step>
  void join(const Step& step) {
    while (replica_.join_backward()) {
      if (!replica_.join_failed()) step();
    }
  }
  /// Continues with other ranks, for example after shrink_group(). Collective for them.
  void set_process_group(const Group& group) { replica_.set_group(group); }

  /// Times and counts of the last synchronized backward.
  BackwardStats stats() const { return replica_.stats(); }
  Replica& replica() { return replica_; }

 private:
  torch::nn::Module& plain() const {
    if constexpr (kIsModule) {
      return *module_;
    } else {
      return *module_.ptr();
    }
  }
  template <class... Inputs>
  auto run(Inputs&&... inputs) {
    if constexpr (kIsAny) {
      return module_.forward(std::forward<Inputs>(inputs)...);
    } else {
      return module_->forward(std::forward<Inputs>(inputs)...);
    }
  }

  Holder module_;
  Replica replica_;
};

template <class Module>
DistributedDataParallel(std::shared_ptr<Module>) -> DistributedDataParallel<Module>;
template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, const Group&) -> DistributedDataParallel<Module>;
template <class Module>
DistributedDataParallel(std::shared_ptr<Module>, const Group&, DistributedDataParallelOptions)
    -> DistributedDataParallel<Module>;
template <class Holder>
DistributedDataParallel(Holder) -> DistributedDataParallel<Holder>;
template <class Holder>
DistributedDataParallel(Holder, const Group&) -> DistributedDataParallel<Holder>;
template <class Holder>
DistributedDataParallel(Holder, const Group&, DistributedDataParallelOptions)
    -> DistributedDataParallel<Holder>;

}  // namespace farandole
