// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_home.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "ddp/gradient_hook.h"
#include "farandole/config.h"
#include "farandole/ddp/bucket.h"

namespace farandole {
namespace {

std::vector<size_t> born_bytes(const std::vector<at::Tensor>& parameters) {
  const bool are_born = Config::from_environment().born_gradients;
  std::vector<size_t> bytes;
  for (const at::Tensor& parameter : parameters) {
    const bool is_born = are_born && parameter.nbytes() >= AliasedSlot::kLeastBytes;
    bytes.push_back(is_born ? parameter.nbytes() : 0);
  }
  return bytes;
}

}  // namespace

std::shared_ptr<GradientHome> GradientHome::make(const std::vector<at::Tensor>& parameters) {
  const std::shared_ptr<GradientHome> home(new GradientHome(parameters));
  for (size_t index = 0; index < parameters.size(); ++index) {
    const auto node = home->parameters_[index].renew();
    if (!node) continue;
    node->add_pre_hook(std::make_unique<GradientHook>(
        home->weak_from_this(), [own = home.get(), index](const at::Tensor& gradient) {
          return own->take(index, gradient);
        }));
  }
  return home;
}

GradientHome::GradientHome(const std::vector<at::Tensor>& parameters)
    : lent_(parameters.size()),
      predictor_(std::make_shared<AllocationPredictor>(born_bytes(parameters))) {
  for (const at::Tensor& parameter : parameters) parameters_.emplace_back(parameter, false);
}

void GradientHome::assign(size_t first, const at::Tensor& memory) {
  const std::lock_guard lock(mutex_);
  size_t index = first;
  for (int64_t offset = 0; offset < memory.numel(); ++index) {
    const at::Tensor& parameter = parameters_[index].parameter();
    std::byte* const place =
        static_cast<std::byte*>(memory.mutable_data_ptr()) + offset * memory.element_size();
    if (predictor_->wants(index)) {
      enable_allocation_watch();
      lent_[index] =
          AliasedSlot::of(place, parameter.nbytes(), std::make_shared<at::Tensor>(memory));
    }
    const auto make_slot = [memory, place, parameter] {
      return SlotTensor(at::from_blob(
                            place, parameter.sizes(), Buckets::strides_of_slot(parameter),
                            [memory](void*) {}, memory.options()),
                        std::make_shared<at::Tensor>(memory));
    };
    parameters_[index].assign_slot(make_slot, lent_[index]);
    offset += parameter.numel();
  }
  rooms_.push_back({first, index, memory});
  predictor_->assign_slots(lent_);
}

at::Tensor GradientHome::gather(size_t first) {
  const c10::NoGradGuard no_grad;
  const std::lock_guard lock(mutex_);
  const auto room = room_at(first);
  if (room == rooms_.end()) return {};
  for (size_t index = room->first; index < room->end; ++index) {
    const ParameterGradient& each = parameters_[index];
    const at::Tensor& gradient = each.parameter().grad();
    if (each.has_changed() || !gradient.defined() || gradient.layout() != at::kStrided ||
        gradient.requires_grad()) {
      return {};
    }
  }
  for (size_t index = room->first; index < room->end; ++index) {
    parameters_[index].release_slot();
    parameters_[index].move_into_slot();
    parameters_[index].close_slot();
  }
  return room->memory;
}

void GradientHome::settle(size_t first) {
  const std::lock_guard lock(mutex_);
  const auto room = room_at(first);
  if (room == rooms_.end()) return;
  for (size_t index = room->first; index < room->end; ++index) {
    if (!parameters_[index].has_changed()) parameters_[index].publish();
  }
}

std::vector<GradientHome::Room>::iterator GradientHome::room_at(size_t first) {
  return std::find_if(rooms_.begin(), rooms_.end(),
                      [&](const Room& each) { return each.first == first; });
}

/// Moves a gradient into its slot. Returns what autograd is to add to p.grad.
at::Tensor GradientHome::take(size_t index, const at::Tensor& gradient) {
  const std::lock_guard lock(mutex_);
  // With create_graph=True p.grad gets a graph of its own.
  if (!gradient.defined() || c10::GradMode::is_enabled() || rooms_.empty()) return gradient;
  begin();
  ParameterGradient& parameter = parameters_[index];
  if (!parameter.has_slot() || gradient.layout() != at::kStrided) return gradient;
  if (parameter.is_born(gradient)) {
    parameter.keep_born(gradient, 1);
    return {};
  }
  if (parameter.could_be_born(gradient)) predictor_->learn(index, gradient);
  if (parameter.parameter().grad().defined()) return gradient;  // which autograd adds to in place
  parameter.release_slot();
  parameter.take(gradient, 1);
  return {};
}

/// The first gradient of a backward has arrived: slots of the others are lent until it ends.
void GradientHome::begin() {
  if (std::exchange(is_running_, true)) return;
  for (ParameterGradient& parameter : parameters_) {
    if (!parameter.has_slot() || parameter.parameter().grad().defined()) continue;
    parameter.release_slot();
    parameter.open_slot();
  }
  predictor_->begin();
  watch_allocations(predictor_);  // sees nothing unless something is lent
  const auto end = [self = shared_from_this()] {
    const std::lock_guard lock(self->mutex_);
    self->is_running_ = false;
    self->predictor_->end();
    watch_allocations(nullptr);
  };
  at_end_of_backward(end, end);
}

}  // namespace farandole
