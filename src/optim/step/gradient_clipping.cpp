// SPDX-License-Identifier: Apache-2.0
#include "optim/step/gradient_clipping.h"

#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "farandole/error.h"

namespace farandole {
namespace {

/// Throws if the norm is not defined for these arguments and parameters.
void check_norm(const ShardLayout& layout, double max_norm, double norm_type) {
  if (!(norm_type > 0) || std::isnan(max_norm)) {
    throw InvalidArgument("clip-norm",
                          "clip_grad_norm_() got max_norm " + std::to_string(max_norm) +
                              " and norm_type " + std::to_string(norm_type) + ".",
                          "the norm is (sum |g|^p)^(1/p), and max_norm must not be NaN.",
                          "pass a number as max_norm and a norm_type above 0 or infinite.");
  }
  if (norm_type != 2 && layout.has_complex()) {
    throw NotSupported(
        "complex-norm",
        "clip_grad_norm_() got complex parameters and norm_type " + std::to_string(norm_type) + ".",
        "complex gradients are handled as pairs of real numbers, for which only the 2-norm is the "
        "same.",
        "pass norm_type 2.");
  }
}

/// `factor` < 1.
void scale(ShardedStep& step, const ShardLayout& layout, GradientMode mode, double factor) {
  if (mode == GradientMode::kShard) {
    return step.add_change({GradientChange::Kind::kScale, factor});
  }
  for (const at::Tensor& tensor : layout.tensors()) {
    if (tensor.grad().defined()) tensor.mutable_grad().mul_(factor);
  }
}

/// By a factor that is on the device, and 1 if nothing is to be done. Returns the norm.
at::Tensor clip_on_device(ShardedStep& step, const ShardLayout& layout, GradientMode mode,
                          double max_norm, const at::Tensor& norm) {
  const at::Tensor factor = (max_norm / (norm + 1e-6)).clamp_max_(1);
  if (mode == GradientMode::kShard) {
    step.add_change({GradientChange::Kind::kNorm, max_norm, factor});
    return norm;
  }
  std::map<at::ScalarType, std::vector<at::Tensor>> gradients;
  for (const at::Tensor& tensor : layout.tensors()) {
    if (tensor.grad().defined()) gradients[tensor.scalar_type()].push_back(tensor.grad());
  }
  for (const auto& [dtype, of_dtype] : gradients) at::_foreach_mul_(of_dtype, factor.to(dtype));
  return norm;
}

}  // namespace

at::Tensor clip_gradient_norm(ShardedStep& step, const ShardLayout& layout, GradientMode mode,
                              double max_norm, double norm_type, bool error_if_nonfinite) {
  check_norm(layout, max_norm, norm_type);
  const c10::NoGradGuard no_grad;
  const at::Tensor term = step.average_norm_term(norm_type);
  if (!term.is_cpu() && !error_if_nonfinite) {
    const at::Tensor norm = std::isinf(norm_type) ? term : term.pow(1 / norm_type);
    return clip_on_device(step, layout, mode, max_norm, norm);
  }
  const auto number = term.item<double>();
  const double norm = std::isinf(norm_type) ? number : std::pow(number, 1 / norm_type);
  if (error_if_nonfinite && !std::isfinite(norm)) {
    throw InvalidArgument(
        "norm-not-finite", "the norm of the gradients is " + std::to_string(norm) + ".",
        "a gradient has an Inf or NaN on some rank.",
        "find the cause, skip the step on all ranks, or pass error_if_nonfinite=False.");
  }
  const double factor = max_norm / (norm + 1e-6);
  if (!(factor >= 1)) scale(step, layout, mode, factor);
  return at::scalar_tensor(norm, term.options());
}

void clip_gradient_values(ShardedStep& step, const ShardLayout& layout, GradientMode mode,
                          double clip_value) {
  if (!(clip_value >= 0)) {
    throw InvalidArgument(
        "clip-value", "clip_grad_value_() got " + std::to_string(clip_value) + ".",
        "elements are clipped to [-clip_value, clip_value].", "pass a number of at least 0.");
  }
  if (layout.has_complex()) {
    throw NotSupported("complex-clip-value", "clip_grad_value_() got complex parameters.",
                       "complex numbers have no order, so they cannot be clipped to a range.",
                       "use clip_grad_norm_().");
  }
  if (mode == GradientMode::kShard) {
    step.add_change({GradientChange::Kind::kClamp, clip_value});
    return;
  }
  const c10::NoGradGuard no_grad;
  for (const at::Tensor& tensor : layout.tensors()) {
    if (tensor.grad().defined()) tensor.mutable_grad().clamp_(-clip_value, clip_value);
  }
}

}  // namespace farandole
