// SPDX-License-Identifier: Apache-2.0
#include "optim/step/gradient_sources.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <unordered_map>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

void check_dense(const at::Tensor& gradient, const std::string& name) {
  if (gradient.layout() == at::kStrided) return;
  throw NotSupported("sparse-gradient", "parameter '" + name + "' has a sparse gradient.",
                     "a sharded optimizer updates all elements that a rank owns, and not only the "
                     "rows of a batch.",
                     "make the embedding with sparse=false, or give it an optimizer of its own.");
}

void check_fits(const at::Tensor& gradient, const at::Tensor& parameter, const std::string& name) {
  check_dense(gradient, name);
  if (gradient.scalar_type() == parameter.scalar_type() && gradient.sizes() == parameter.sizes() &&
      gradient.device() == parameter.device()) {
    return;
  }
  throw InvalidArgument("gradient-mismatch",
                        "the gradient of parameter '" + name + "' does not match the parameter.",
                        "its dtype, shape or device differs.",
                        "set p.grad to a tensor of the dtype, shape and device of p, or to none.");
}

/// Whether the elements of the gradient have the order of the parameter's elements in its slot.
bool lies_alike(const at::Tensor& gradient, const at::Tensor& parameter) {
  return (gradient.is_contiguous() && parameter.is_contiguous()) ||
         gradient.strides() == at::IntArrayRef(Buckets::strides_of_slot(parameter));
}

/// The gradient with its elements in the order of the parameter's memory; a copy if necessary.
at::Tensor as_parameter(const at::Tensor& gradient, const at::Tensor& parameter) {
  const c10::NoGradGuard no_grad;
  if (lies_alike(gradient, parameter) && !gradient.is_conj() && !gradient.is_neg()) {
    return gradient;
  }
  const at::Tensor copy = at::empty_strided(parameter.sizes(), Buckets::strides_of_slot(parameter),
                                            parameter.options());
  copy.copy_(gradient.detach());
  return copy;
}

Replica& alive(const ReplicaLink& link, const void* owner) {
  if (link.replica != nullptr && link.replica->is_sharded_by(owner)) return *link.replica;
  throw InvalidArgument(
      "optimizer-detached", "a sharded optimizer no longer gets the gradients of its parameters.",
      link.replica == nullptr ? "its DistributedDataParallel, which holds them, was destroyed."
                              : "the ranks or parameters of its DistributedDataParallel changed, "
                                "or another optimizer was made for it.",
      "keep the DistributedDataParallel as long as the optimizer, and call "
      "rebuild() after set_process_group().");
}

/// `matters`: whether the step needs what a pass under no_sync() leaves out.
void check_synchronized(const Reducer& reducer, bool matters) {
  if (!matters || !reducer.has_local_passes()) return;
  throw InvalidArgument("step-after-no-sync",
                        "the last backward before step() ran under no_sync().",
                        "with gradients=\"shard\" the last pass of a step exchanges the loss "
                        "weights and, over groups without shared memory, the gradients.",
                        "run the last pass of each step outside no_sync().");
}

std::byte* at_offset(const void* data, int64_t bytes) {
  return static_cast<std::byte*>(const_cast<void*>(data)) + bytes;
}

}  // namespace

GradientSources::~GradientSources() = default;

void AveragedGradients::look(const std::vector<at::Tensor>& parameters,
                             const std::vector<std::string>& names) {
  gradients_.resize(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].grad();
    if (gradient.defined()) check_fits(gradient, parameters[i], names[i]);
    gradients_[i] = gradient.defined() ? as_parameter(gradient, parameters[i]) : at::Tensor();
  }
}

void AveragedGradients::append(size_t parameter, int64_t offset, size_t, int64_t,
                               std::vector<const void*>& addresses) const {
  const at::Tensor& gradient = gradients_[parameter];
  addresses.push_back(
      at_offset(gradient.const_data_ptr(), offset * static_cast<int64_t>(gradient.element_size())));
}

at::Tensor AveragedGradients::tensor_of(size_t parameter, const ShardPiece& piece) const {
  const at::Tensor& gradient = gradients_[parameter];
  return gradient.as_strided({piece.elements}, {1},
                             gradient.storage_offset() + piece.parameter_offset);
}

void PeerGradients::look(const std::vector<at::Tensor>& parameters,
                         const std::vector<std::string>& names) {
  Reducer& reducer = *alive(*replica_, owner_).reducer();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].grad().defined()) check_fits(parameters[i].grad(), parameters[i], names[i]);
  }
  reducer.move_into_slots();
  check_synchronized(reducer,
                     reducer.is_weighted() || reducer.divisor() != static_cast<double>(count()));
  if (buckets_ != reducer.buckets() || places_.size() != parameters.size()) {
    buckets_ = reducer.buckets();
    find_places(parameters);
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined() || (buckets_ && places_[i] >= 0)) continue;
    throw InvalidArgument(
        "gradient-not-shared",
        "the gradient of parameter '" + names[i] + "' is in memory that other ranks cannot read.",
        "with gradients=\"shard\" it must come from a backward through DistributedDataParallel.",
        "run forward and backward through it, or use gradients=\"full\".");
  }
}

void PeerGradients::find_places(const std::vector<at::Tensor>& parameters) {
  places_.assign(parameters.size(), -1);
  element_bytes_.assign(parameters.size(), 0);
  if (!buckets_) return;
  std::unordered_map<const c10::TensorImpl*, size_t> indices;
  for (size_t i = 0; i < parameters.size(); ++i) {
    indices[parameters[i].unsafeGetTensorImpl()] = i;
    element_bytes_[i] = parameters[i].element_size();
  }
  const NamedTensors& replicated = replica_->replica->parameters();
  for (const auto& bucket : buckets_->plan().buckets) {
    for (const auto& slot : bucket.slots) {
      const auto found = indices.find(replicated[slot.parameter].second.unsafeGetTensorImpl());
      if (found == indices.end()) continue;
      places_[found->second] =
          bucket.offset_bytes + slot.offset * static_cast<int64_t>(c10::elementSize(bucket.dtype));
    }
  }
}

void PeerGradients::append(size_t parameter, int64_t offset, size_t, int64_t,
                           std::vector<const void*>& addresses) const {
  const int64_t bytes =
      places_[parameter] + offset * static_cast<int64_t>(element_bytes_[parameter]);
  for (size_t rank = 0; rank < count(); ++rank) {
    addresses.push_back(at_offset(buckets_->symmetric()->peer(static_cast<int>(rank)), bytes));
  }
}

at::Tensor PeerGradients::tensor_of(size_t parameter, const ShardPiece& /*piece*/) const {
  throw Error(
      "our-bug",
      "the gradient of parameter " + std::to_string(parameter) + " was asked for as one tensor.",
      "this is a bug in Farandole: it is in the memory of several ranks.",
      "report it with the model.");
}

size_t PeerGradients::count() const {
  return static_cast<size_t>(alive(*replica_, owner_).group().world_size());
}

double PeerGradients::divisor() const { return alive(*replica_, owner_).reducer()->divisor(); }

void ScatteredGradients::look(const std::vector<at::Tensor>& parameters,
                              const std::vector<std::string>& names) {
  check_synchronized(*alive(*replica_, owner_).reducer(), true);
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].grad().defined()) continue;
    check_dense(parameters[i].grad(), names[i]);
    if (parameters[i].requires_grad()) continue;
    throw InvalidArgument("frozen-gradient",
                          "parameter '" + names[i] + "' is frozen and has a gradient.",
                          "with gradients=\"shard\" over this group, only gradients that backward "
                          "computes reach other ranks.",
                          "set p.grad to none when you freeze it.");
  }
}

void ScatteredGradients::append(size_t, int64_t, size_t bucket, int64_t shard_offset,
                                std::vector<const void*>& addresses) const {
  const at::Tensor& shard = scatter_->shard(bucket);
  addresses.push_back(
      at_offset(shard.const_data_ptr(), shard_offset * static_cast<int64_t>(shard.element_size())));
}

at::Tensor ScatteredGradients::tensor_of(size_t, const ShardPiece& piece) const {
  return scatter_->shard(piece.bucket).narrow(0, piece.shard_offset, piece.elements);
}

double ScatteredGradients::divisor() const { return alive(*replica_, owner_).reducer()->divisor(); }

}  // namespace farandole
