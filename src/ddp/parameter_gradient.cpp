// SPDX-License-Identifier: Apache-2.0
#include "ddp/parameter_gradient.h"

#include <ATen/ops/clone.h>
#include <ATen/ops/copy.h>
#include <c10/core/GradMode.h>

#include <utility>

#include "ddp/gradient_move.h"
#include "ddp/sole_holder.h"
#include "farandole/ddp/bucket.h"

namespace farandole {
namespace {

/// A gradient that lies dense in memory. (A place in a bucket is dense.)
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
  // Also after .double().float(): autograd has made another node then.
  return parameter_.requires_grad() != active_ || parameter_.scalar_type() != dtype_ ||
         parameter_.device() != device_ ||
         (active_ &&
          torch::autograd::impl::try_get_grad_accumulator(parameter_).get() != accumulator_.get());
}

NodePointer ParameterGradient::renew() {
  active_ = parameter_.requires_grad();
  dtype_ = parameter_.scalar_type();
  device_ = parameter_.device();
  strides_ = Buckets::strides_of_place(parameter_);
  make_place_ = nullptr;
  place_ = at::Tensor();
  birthplace_.reset();
  address_ = nullptr;
  finite_version_ = -1;
  if (!active_) return nullptr;
  auto node = torch::autograd::impl::grad_accumulator(parameter_);
  if (node == accumulator_) return nullptr;
  accumulator_ = node;
  return node;
}

void ParameterGradient::settle(std::function<at::Tensor()> make_place,
                               std::shared_ptr<Birthplace> birthplace) {
  make_place_ = std::move(make_place);
  birthplace_ = std::move(birthplace);
  place_ = make_place_();
  address_ = place_.const_data_ptr();
}

bool ParameterGradient::is_place(const at::Tensor& tensor) const {
  return tensor.defined() && lies_as_place(tensor) && tensor.const_data_ptr() == address_;
}

bool ParameterGradient::lies_as_place(const at::Tensor& tensor) const {
  return tensor.layout() == at::kStrided && tensor.scalar_type() == dtype_ &&
         tensor.strides() == at::IntArrayRef(strides_) && tensor.sizes() == parameter_.sizes();
}

const at::Tensor& ParameterGradient::place() {
  if (!is_place(place_)) place_ = make_place_();
  return place_;
}

const at::Tensor& ParameterGradient::cleared_place() {
  close_place();
  return place();
}

void ParameterGradient::open_place() {
  if (birthplace_ && !parameter_.grad().defined()) birthplace_->open();
}

void ParameterGradient::close_place() {
  if (birthplace_) birthplace_->evict();
}

bool ParameterGradient::could_be_born(const at::Tensor& gradient) const {
  return !parameter_.grad().defined() && lies_as_place(gradient) && !gradient.is_conj() &&
         !gradient.is_neg();
}

bool ParameterGradient::is_born(const at::Tensor& gradient) const {
  return birthplace_ && could_be_born(gradient) && birthplace_->holds(gradient);
}

void ParameterGradient::keep_born(const at::Tensor& gradient, double scale) {
  if (!has_sole_holder(gradient)) birthplace_->evict();
  if (scale != 1) move_gradient(place(), place(), {scale});
  expose();
}

void ParameterGradient::take(const at::Tensor& gradient, double scale) {
  const bool accumulate = adopt();
  move_gradient(dense(gradient), cleared_place(), {scale, accumulate});
  expose();
}

bool ParameterGradient::adopt() {
  const at::Tensor& gradient = parameter_.grad();
  if (!gradient.defined()) return false;
  if (is_home()) return true;
  const c10::NoGradGuard no_grad;
  move_gradient(dense(gradient.detach()), cleared_place(), {});
  expose();
  return true;
}

void ParameterGradient::clear_place() {
  const c10::NoGradGuard no_grad;
  cleared_place().zero_();
}

void ParameterGradient::expose() {
  if (!parameter_.grad().is_same(place())) parameter_.mutable_grad() = place_;
}

void ParameterGradient::leave_place() {
  if (has_place() && is_home()) parameter_.mutable_grad() = saved();
}

void ParameterGradient::note_result() {
  if (parameter_.grad().defined()) version_ = parameter_.grad()._version();
}

bool ParameterGradient::is_other_result() const {
  const at::Tensor& gradient = parameter_.grad();
  return gradient.defined() && (!is_home() || gradient._version() != version_);
}

void ParameterGradient::note_finite(bool is_finite) {
  finite_version_ = is_finite && is_home() ? parameter_.grad()._version() : -1;
}

bool ParameterGradient::is_known_finite() const {
  return finite_version_ >= 0 && is_home() && parameter_.grad()._version() == finite_version_;
}

at::Tensor ParameterGradient::saved() const {
  const at::Tensor& gradient = parameter_.grad();
  return gradient.defined() ? gradient.detach().clone() : at::Tensor();
}

void ParameterGradient::restore(const at::Tensor& saved) {
  const c10::NoGradGuard no_grad;
  if (saved.defined()) cleared_place().copy_(saved);
}

}  // namespace farandole
