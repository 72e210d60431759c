// SPDX-License-Identifier: Apache-2.0
#include "ddp/parameter_gradient.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <c10/core/AutogradState.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <utility>

#include "ddp/allocation/sole_holder.h"
#include "ddp/gradient_hook.h"
#include "ddp/gradient_move.h"
#include "farandole/ddp/bucket.h"

namespace farandole {
namespace {

/// The gradient without a sparse layout.
at::Tensor dense(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided ? gradient : gradient.to_dense();
}

}  // namespace

ParameterGradient::ParameterGradient(at::Tensor parameter, bool sparse)
    : parameter_(std::move(parameter)),
      sparse_(sparse),
      dtype_(parameter_.scalar_type()),
      device_(parameter_.device()) {}

bool ParameterGradient::has_changed() const {
  // Also true after .double().float(), after which autograd has another node.
  return parameter_.requires_grad() != active_ || parameter_.scalar_type() != dtype_ ||
         parameter_.device() != device_ ||
         (active_ &&
          torch::autograd::impl::try_get_grad_accumulator(parameter_).get() != accumulator_.get());
}

NodePointer ParameterGradient::renew() {
  active_ = parameter_.requires_grad();
  dtype_ = parameter_.scalar_type();
  device_ = parameter_.device();
  strides_ = Buckets::strides_of_slot(parameter_);
  make_slot_ = nullptr;
  slot_ = {};
  aliased_slot_.reset();
  is_outside_ = false;
  finite_version_ = -1;
  if (!active_) return nullptr;
  auto node = torch::autograd::impl::grad_accumulator(parameter_);
  if (node == accumulator_) return nullptr;
  accumulator_ = node;
  return node;
}

void ParameterGradient::assign_slot(std::function<SlotTensor()> make_slot,
                                    std::shared_ptr<AliasedSlot> aliased_slot, SlotTensor slot) {
  make_slot_ = std::move(make_slot);
  aliased_slot_ = std::move(aliased_slot);
  slot_ = slot.is_in_place() ? std::move(slot) : make_slot_();
}

bool ParameterGradient::is_slot(const at::Tensor& tensor) const {
  return tensor.defined() && is_laid_out_as_slot(tensor) &&
         tensor.const_data_ptr() == slot_.address();
}

bool ParameterGradient::is_laid_out_as_slot(const at::Tensor& tensor) const {
  return tensor.layout() == at::kStrided && tensor.scalar_type() == dtype_ &&
         tensor.strides() == at::IntArrayRef(strides_) && tensor.sizes() == parameter_.sizes();
}

const at::Tensor& ParameterGradient::slot() {
  if (!is_slot(slot_.tensor())) slot_ = make_slot_();
  return slot_.tensor();
}

const at::Tensor& ParameterGradient::cleared_slot() {
  close_slot();
  release_slot();
  return slot();
}

bool ParameterGradient::stays_outside() const {
  return c10::GradMode::is_enabled() || is_held_outside();
}

bool ParameterGradient::is_shared() const {
  const auto& hooks = accumulator_->pre_hooks();
  if (hooks.size() < 2) return false;  // almost every parameter has one
  return std::count_if(hooks.begin(), hooks.end(), [](const auto& hook) {
           const auto* const own = dynamic_cast<const GradientHook*>(hook.get());
           return own != nullptr && own->is_alive();
         }) > 1;
}

/// Whether p.grad is outside of the slot and has to stay there.
bool ParameterGradient::is_held_outside() const {
  const at::Tensor& gradient = parameter_.grad();
  if (gradient.defined() && gradient.layout() == at::kStrided && !is_in_slot() &&
      (gradient.requires_grad() || !has_sole_holder(gradient))) {
    return true;
  }
  return active_ && is_shared();
}

void ParameterGradient::open_slot() {
  if (parameter_.grad().defined()) return;
  release_slot();
  if (aliased_slot_ && !is_shared()) aliased_slot_->open();
}

void ParameterGradient::release_slot() {
  if (is_in_slot() || !slot_.is_held()) return;
  slot_.release();
  slot_ = make_slot_();
}

void ParameterGradient::close_slot() {
  if (aliased_slot_) aliased_slot_->evict();
}

bool ParameterGradient::could_be_born(const at::Tensor& gradient) const {
  return !parameter_.grad().defined() && is_laid_out_as_slot(gradient) && !gradient.is_conj() &&
         !gradient.is_neg();
}

bool ParameterGradient::is_born(const at::Tensor& gradient) const {
  return aliased_slot_ && could_be_born(gradient) && aliased_slot_->holds(gradient);
}

void ParameterGradient::keep_born(const at::Tensor& gradient, double scale) {
  if (!has_sole_holder(gradient)) aliased_slot_->evict();
  if (scale != 1) move_gradient(slot(), slot(), {scale});
  expose_slot();
}

bool ParameterGradient::may_arrive_later(const at::Tensor& gradient) const {
  return !parameter_.is_cpu() && !parameter_.grad().defined() &&
         gradient.layout() == at::kStrided && accumulator_->post_hooks().size() == 1 &&
         torch::autograd::impl::post_acc_grad_hooks(parameter_) == nullptr;
}

void ParameterGradient::take(const at::Tensor& gradient, double scale) {
  const bool accumulate = move_into_slot();
  move_gradient(dense(gradient), cleared_slot(), {scale, accumulate});
  expose_slot();
}

bool ParameterGradient::move_into_slot() {
  const at::Tensor& gradient = parameter_.grad();
  if (!gradient.defined()) return false;
  if (is_in_slot()) return true;
  const c10::NoGradGuard no_grad;
  is_outside_ = is_held_outside();
  move_gradient(dense(gradient.detach()), cleared_slot(), {});
  if (!is_outside_) expose_slot();
  return true;
}

void ParameterGradient::clear_slot() {
  const c10::NoGradGuard no_grad;
  cleared_slot().zero_();
}

void ParameterGradient::expose_slot() {
  if (!parameter_.grad().is_same(slot())) parameter_.mutable_grad() = slot_.tensor();
}

void ParameterGradient::publish() {
  if (!parameter_.grad().defined() || is_in_slot() || !is_held_outside()) return expose_slot();
  const at::Tensor local = parameter_.grad();
  if (!local.requires_grad()) {
    local.copy_(slot());
    return;
  }
  // Of clone(), whose node keeps no values and passes gradients on as they are.
  const c10::AutoGradMode with_graph(true);
  const at::Tensor average = local.clone();
  average.variable_data().copy_(slot());
  parameter_.mutable_grad() = average;
}

void ParameterGradient::publish_outside() {
  if (is_outside_ && parameter_.grad().defined()) publish();
}

void ParameterGradient::note_written() {
  if (parameter_.is_cpu() || !parameter_.grad().defined()) return;
  written_version_ = parameter_.grad()._version();
}

void ParameterGradient::leave_slot() {
  if (!has_slot() || !is_in_slot()) return;
  const bool is_cleared = !parameter_.is_cpu() && parameter_.grad()._version() != written_version_;
  parameter_.mutable_grad() = is_cleared ? at::zeros_like(parameter_.grad()) : saved();
  release_slot();
}

void ParameterGradient::note_result() {
  if (parameter_.grad().defined()) version_ = parameter_.grad()._version();
}

bool ParameterGradient::is_other_result() const {
  const at::Tensor& gradient = parameter_.grad();
  return gradient.defined() && (!is_in_slot() || gradient._version() != version_);
}

void ParameterGradient::note_finite(bool is_finite) {
  finite_version_ = is_finite && is_in_slot() ? parameter_.grad()._version() : -1;
}

bool ParameterGradient::is_known_finite() const {
  return finite_version_ >= 0 && is_in_slot() && parameter_.grad()._version() == finite_version_;
}

bool ParameterGradient::was_parameter_written() {
  const int64_t before = std::exchange(parameter_version_, -1);
  return before >= 0 && parameter_._version() != before;
}

at::Tensor ParameterGradient::saved() const {
  const at::Tensor& gradient = parameter_.grad();
  return gradient.defined() ? gradient.detach().clone() : at::Tensor();
}

void ParameterGradient::restore(const at::Tensor& saved) {
  const c10::NoGradGuard no_grad;
  if (saved.defined()) cleared_slot().copy_(saved);
}

}  // namespace farandole
