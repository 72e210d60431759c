// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/replica.h"

#include <ATen/MemoryOverlap.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

constexpr double kMiB = 1024 * 1024;

int64_t bytes_of(double mib, const char* option) {
  if (mib > 0 && mib < 1e6) return std::max<int64_t>(static_cast<int64_t>(mib * kMiB), 1);
  throw InvalidArgument("bucket-cap", std::string(option) + " got " + std::to_string(mib) + ".",
                        "it must be the size of a gradient bucket in MiB.",
                        "pass a number above 0, or none for the default of the group.");
}

/// Each tensor once, under its first name, without the ignored ones.
NamedTensors without(const std::set<std::string>& ignored, const NamedTensors& tensors) {
  NamedTensors kept;
  std::set<const void*> seen;
  for (const auto& named : tensors) {
    const bool is_new = seen.insert(named.second.unsafeGetTensorImpl()).second;
    if (is_new && ignored.count(named.first) == 0) kept.push_back(named);
  }
  return kept;
}

std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& [name, tensor] : named) tensors.push_back(tensor.detach());
  return tensors;
}

bool same_tensors(const NamedTensors& left, const NamedTensors& right) {
  return std::equal(left.begin(), left.end(), right.begin(), right.end(),
                    [](const auto& a, const auto& b) { return a.second.is_same(b.second); });
}

void check_wire(const std::optional<at::ScalarType>& dtype) {
  if (!dtype || *dtype == at::kBFloat16 || *dtype == at::kHalf || *dtype == at::kFloat) return;
  throw InvalidArgument(
      "wire-dtype",
      std::string("DistributedDataParallel got the wire_dtype ") + c10::toString(*dtype) + ".",
      "gradients are sent unchanged, as a half type, or as float32.",
      "pass bfloat16, float16, float32 or none.");
}

void check_has_memory(const NamedTensors& tensors, const char* kind) {
  for (const auto& [name, tensor] : tensors) {
    if (!tensor.is_meta()) continue;
    throw InvalidArgument("meta-module",
                          std::string("DistributedDataParallel got a module on the meta device: ") +
                              kind + " '" + name + "'.",
                          "meta tensors have a shape and no values, so nothing could be averaged.",
                          "call to_empty(device=...) on the module and initialize or load its "
                          "state on every rank before you wrap it.");
  }
}

/// Other ranks write rank 0's values into these tensors. Checked on every rank, so that all throw
/// before any waits for another.
void check_writable(const NamedTensors& tensors, const char* kind) {
  for (const auto& [name, tensor] : tensors) {
    const std::string subject =
        std::string("DistributedDataParallel got ") + kind + " '" + name + "', ";
    const std::string why =
        "rank 0's values are copied into it on the other ranks, which torch does not allow for it.";
    if (tensor.is_inference()) {
      throw InvalidArgument(
          "inference-tensor", subject + "which was made in inference mode.", why,
          "make the module outside torch.inference_mode(), or clone() the tensor there.");
    }
    if (tensor.layout() == at::kStrided &&
        at::has_internal_overlap(tensor) == at::MemOverlap::Yes) {
      throw InvalidArgument("expanded-tensor", subject + "some elements of which share memory.",
                            why, "register a copy, for example clone() of an expanded tensor.");
    }
    if (tensor.layout() != at::kStrided) {
      throw NotSupported("tensor-layout",
                         subject + "which has the layout " + c10::str(tensor.layout()) + ".",
                         "Farandole sends only dense tensors.",
                         "register it as a dense tensor, or put its name into the module's "
                         "_ddp_params_and_buffers_to_ignore.");
    }
  }
}

/// Runs `check` on this rank. Throws if it threw on any rank. Collective.
void check_on_all_ranks(const std::function<void()>& check, const ReplicaGroup& group) {
  std::exception_ptr failure;
  std::string text;
  try {
    check();
  } catch (const std::exception& error) {
    failure = std::current_exception();
    text = error.what();
  }
  const std::vector<uint64_t> failed = group.all_gather(uint64_t{failure != nullptr});
  const auto first = std::find(failed.begin(), failed.end(), 1U);
  if (first == failed.end()) return;
  const std::vector<std::string> texts = group.all_gather(text);
  if (failure) std::rethrow_exception(failure);
  const auto rank = static_cast<size_t>(first - failed.begin());
  throw InvalidArgument(
      "module-refused-elsewhere",
      "rank " + std::to_string(rank) + " of group '" + group.name() +
          "' cannot wrap its module: " + texts[rank].substr(0, texts[rank].find('\n')),
      "all ranks wrap their modules together.",
      "change the module on that rank, or on every rank.");
}

void check_trainable(const NamedTensors& parameters) {
  if (std::any_of(parameters.begin(), parameters.end(),
                  [](const auto& named) { return named.second.requires_grad(); })) {
    return;
  }
  throw InvalidArgument("nothing-to-train",
                        "DistributedDataParallel got a module without parameters to train.",
                        parameters.empty() ? "it has no parameters, or all of them are ignored."
                                           : "none of its parameters requires a gradient.",
                        "use the module without the wrapper: there are no gradients to average.");
}

/// Finds the Replica of a parameter.
class ReplicaRegistry {
 public:
  static ReplicaRegistry& instance() {
    static auto* const registry = new ReplicaRegistry;  // never destroyed
    return *registry;
  }

  void put(const NamedTensors& parameters, const std::shared_ptr<ReplicaLink>& link) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, tensor] : parameters) links_[tensor.unsafeGetTensorImpl()] = link;
  }
  void remove(const NamedTensors& parameters, const ReplicaLink* link) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, tensor] : parameters) {
      const auto found = links_.find(tensor.unsafeGetTensorImpl());
      if (found != links_.end() && found->second.get() == link) links_.erase(found);
    }
  }
  std::shared_ptr<ReplicaLink> find(const at::Tensor& parameter) const {
    const std::lock_guard lock(mutex_);
    const auto found = links_.find(parameter.unsafeGetTensorImpl());
    return found == links_.end() ? nullptr : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::unordered_map<const c10::TensorImpl*, std::shared_ptr<ReplicaLink>> links_;
};

}  // namespace

BucketCaps bucket_caps(const ReplicaOptions& options, const ReplicaGroup& group) {
  // In shared memory a bucket costs no message, so buckets are small: they stay in the cache until
  // they are reduced.
  const bool shared = group.shared_memory() != nullptr;
  const double cap = options.bucket_cap_mb.value_or(shared ? 1 : 25);
  BucketCaps caps{};
  caps.bytes = bytes_of(cap, "bucket_cap_mb");
  caps.first_bytes = std::min(caps.bytes, bytes_of(shared ? 0.25 : 1, "bucket_cap_mb"));
  if (!options.bucket_cap_mb) caps.last_bytes = shared ? caps.bytes / 4 : caps.bytes / 25;
  for (const double mib : options.bucket_cap_mb_list) {
    caps.list.push_back(bytes_of(mib, "bucket_cap_mb_list"));
  }
  return caps;
}

Replica::Replica(NamedTensors parameters, NamedTensors buffers, const Group& group,
                 ReplicaOptions options)
    : options_(std::move(options)),
      parameters_(without(options_.ignored, parameters)),
      buffers_(without(options_.ignored, buffers)) {
  group_ = std::make_shared<ReplicaGroup>(group);
  const auto check = [this] {
    check_wire(options_.wire_dtype);
    check_has_memory(parameters_, "parameter");
    check_has_memory(buffers_, "buffer");
    if (group_->world_size() == 1) return;
    if (options_.init_sync) check_writable(parameters_, "parameter");
    check_writable(buffers_, "buffer");
  };
  check_on_all_ranks(check, *group_);
  if (options_.init_sync) check_same_replicas(parameters_, buffers_, *group_);
  check_trainable(parameters_);
  report_nonfinite_ = strictest_policy();
  if (options_.init_sync) broadcast();
  reducer_ = make_reducer();
  ReplicaRegistry::instance().put(parameters_, link_);
}

Replica::~Replica() {
  pass_weight_->value.store(1);  // layers may go on without this
  ReplicaRegistry::instance().remove(parameters_, link_.get());
  link_->replica = nullptr;
}

std::shared_ptr<ReplicaLink> Replica::of(const at::Tensor& parameter) {
  return ReplicaRegistry::instance().find(parameter);
}

void Replica::await_parameters() const {
  for (const auto& [owner, await] : awaits_) await();
}

/// The strictest policy of all ranks, which every rank then applies.
NonfinitePolicy Replica::strictest_policy() const {
  const auto own = options_.report_nonfinite.value_or(Config::from_environment().check_finite);
  uint64_t strictest = 0;
  for (const uint64_t each : group_->all_gather(static_cast<uint64_t>(own))) {
    strictest = std::max(strictest, each);
  }
  return static_cast<NonfinitePolicy>(strictest);
}

std::shared_ptr<Reducer> Replica::make_reducer() const {
  std::vector<Reducer::Parameter> parameters;
  for (const auto& [name, tensor] : parameters_) {
    parameters.push_back({name, tensor, options_.sparse.count(name) != 0});
  }
  auto reducer = Reducer::make(
      std::move(parameters), group_,
      {bucket_caps(options_, *group_), options_.find_unused_parameters, options_.static_graph,
       report_nonfinite_, options_.wire_dtype, options_.skip_all_reduce_unused_params,
       Config::from_environment().born_gradients});
  reducer->set_loss_weight(loss_weight_);
  if (hook_) reducer->set_hook(hook_);
  if (sharded_) reducer->set_sharded(sharded_);
  return reducer;
}

/// Returns the Reducer before.
std::shared_ptr<Reducer> Replica::replace_reducer() {
  auto reducer = make_reducer();
  earlier_passes_ += reducer_->passes();
  return std::exchange(reducer_, std::move(reducer));
}

bool Replica::will_send_buffers() const {
  return synchronize_ && options_.broadcast_buffers && !buffers_.empty();
}

void Replica::before_forward() {
  join_failed_ = false;
  await_parameters();
  if (c10::GradMode::is_enabled()) {
    reducer_->before_forward();
  } else {
    end_abandoned();  // otherwise peers would meet the buffers of this forward
  }
  if (will_send_buffers()) broadcast_buffers(reducer_->leader());
}

void Replica::after_forward(const std::vector<at::Tensor>& outputs) {
  if (c10::GradMode::is_enabled()) reducer_->after_forward(outputs, synchronize_);
}

void Replica::forward_failed() {
  if (c10::GradMode::is_enabled() && synchronize_) reducer_->forward_failed();
}

void Replica::set_loss_weight(std::optional<double> weight) {
  reducer_->set_loss_weight(weight);
  loss_weight_ = weight;
  pass_weight_->value.store(weight.value_or(1));
}

void Replica::set_sharded(std::optional<ShardedGradients> sharded) {
  if (!sharded) sharded_.reset();
  reducer_->set_sharded(sharded);
  sharded_ = std::move(sharded);
}

void Replica::set_before_forward(const void* owner, std::function<void()> function) {
  if (function) {
    awaits_[owner] = std::move(function);
  } else {
    awaits_.erase(owner);
  }
}

void Replica::set_hook(std::shared_ptr<c10d::CommHookInterface> hook) {
  reducer_->set_hook(hook);
  hook_ = std::move(hook);
}

void Replica::broadcast(int root) {
  await_parameters();
  std::vector<at::Tensor> tensors = tensors_of(parameters_);
  for (const at::Tensor& buffer : tensors_of(buffers_)) tensors.push_back(buffer);
  group_->broadcast(tensors, root);
}

void Replica::broadcast_buffers(int root) {
  const std::vector<at::Tensor> buffers = tensors_of(buffers_);
  group_->broadcast(buffers, root);
  if (group_->rank() != root || group_->world_size() == 1) return;
  // A backward that needs their earlier values ends in the same error as on the other ranks.
  for (const at::Tensor& buffer : buffers) buffer.unsafeGetTensorImpl()->bump_version();
}

/// Takes part in what the other ranks do for one batch: a forward with its buffers, and a backward.
bool Replica::join_backward(double weight) {
  end_abandoned();
  if (will_send_buffers()) broadcast_buffers(reducer_->leader());
  if (!reducer_->join_backward(weight)) {
    end_join();
    return false;
  }
  took_part_ = true;
  join_failed_ = !reducer_->has_averages();
  return true;
}

void Replica::end_join() {
  join_failed_ = false;
  if (!std::exchange(took_part_, false)) return;
  for (const auto& named : parameters_) {
    const at::Tensor& parameter = named.second;
    if (parameter.requires_grad()) parameter.mutable_grad() = at::Tensor();
  }
}

void Replica::set_group(const Group& group) {
  try {
    await_parameters();
  } catch (const std::exception&) {  // ranks are gone; rebuild() compares
  }
  group_ = std::make_shared<ReplicaGroup>(group);
  sharded_.reset();  // until the optimizer has made a plan for these ranks
  awaits_.clear();
  replace_reducer();
}

void Replica::set_tensors(NamedTensors parameters, NamedTensors buffers) {
  NamedTensors sent = without(options_.ignored, buffers);
  if (group_->world_size() > 1) check_writable(sent, "buffer");
  buffers_ = std::move(sent);
  NamedTensors others = without(options_.ignored, parameters);
  if (same_tensors(parameters_, others)) return;
  ReplicaRegistry::instance().remove(parameters_, link_.get());
  parameters_ = std::move(others);
  ReplicaRegistry::instance().put(parameters_, link_);
  sharded_.reset();                     // the optimizer's plan is for the old tensors
  replace_reducer()->before_forward();  // where peers may wait
}

}  // namespace farandole
