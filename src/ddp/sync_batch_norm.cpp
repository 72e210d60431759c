// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/sync_batch_norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/basic_ops.h>
#include <torch/custom_class.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "farandole/error.h"
#include "farandole/process_group/autograd_error.h"
#include "farandole/process_group/collectives.h"

namespace farandole {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

void check_dimensions(const at::Tensor& input) {
  if (input.dim() >= 2) return;
  throw InvalidArgument(
      "batch-norm-dimensions",
      "SyncBatchNorm got an input of " + std::to_string(input.dim()) + " dimensions.",
      "it normalizes the channels of [N, C, ...].", "pass a batch of at least 2 dimensions.");
}

std::vector<int64_t> all_but_channels(const at::Tensor& x) {
  std::vector<int64_t> dimensions{0};
  for (int64_t i = 2; i < x.dim(); ++i) dimensions.push_back(i);
  return dimensions;
}

/// [C] so that it broadcasts over x, [N, C, ...].
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& x) {
  std::vector<int64_t> shape(static_cast<size_t>(x.dim()), 1);
  shape[1] = -1;
  return values.view(shape);
}

/// A PassWeight in the context of a backward.
struct KeptWeight : torch::CustomClassHolder {
  explicit KeptWeight(std::shared_ptr<const PassWeight> kept) : weight(std::move(kept)) {}
  const std::shared_ptr<const PassWeight> weight;  // may be null
};

struct Statistics {
  at::Tensor mean, variance, count;
};

/// Of all ranks, from each one's mean, variance and number of elements (Chan, Golub and LeVeque
/// 1983, "Algorithms for computing the sample variance").
Statistics statistics_of(const at::Tensor& x, const Group& group) {
  const int64_t channels = x.size(1);
  const auto dtype = x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const auto options = x.options().dtype(dtype).memory_format(at::MemoryFormat::Contiguous);
  const at::Tensor own = at::zeros({2 * channels + 1}, options);
  if (x.numel() != 0) {
    const auto [variance, mean] = at::var_mean(x.to(dtype), all_but_channels(x), /*correction=*/0);
    own.narrow(0, 0, channels).copy_(mean);
    own.narrow(0, channels, channels).copy_(variance);
    own[-1].fill_(x.numel() / channels);
  }
  const int64_t ranks = world_size(group);
  const at::Tensor everyone = at::empty({ranks, own.numel()}, options);
  all_gather(everyone.view(-1), own, {group});
  const at::Tensor means = everyone.narrow(1, 0, channels);
  const at::Tensor variances = everyone.narrow(1, channels, channels);
  const at::Tensor counts = everyone.narrow(1, 2 * channels, 1);
  const at::Tensor count = counts.sum();
  const at::Tensor share = counts / count;
  const at::Tensor mean = (share * means).sum(0);
  return {mean, (share * (variances + (means - mean).square())).sum(0), count};
}

/// The gradients have passed through a collective, which nothing differentiates.
variable_list once_differentiable(variable_list gradients) {
  for (at::Tensor& gradient : gradients) {
    if (gradient.defined()) gradient = gradient.detach().set_requires_grad(true);
  }
  const auto error = std::make_shared<torch::autograd::DelayedError>(
      "SyncBatchNorm has no second derivative.", static_cast<int64_t>(gradients.size()));
  return (*error)(std::move(gradients));
}

class Normalize : public torch::autograd::Function<Normalize> {
 public:
  static variable_list forward(AutogradContext* context, const at::Tensor& x,
                               const std::optional<at::Tensor>& weight,
                               const std::optional<at::Tensor>& bias, double eps,
                               const Group& group,
                               const c10::intrusive_ptr<KeptWeight>& pass_weight) {
    const Statistics all = statistics_of(x, group);
    const at::Tensor inverse = at::rsqrt(all.variance + eps);
    context->save_for_backward({x, weight.value_or(at::Tensor()), all.mean, inverse, all.count});
    context->saved_data["has_bias"] = bias.has_value();
    context->saved_data["group"] = at::IValue::make_capsule(group);
    context->saved_data["pass_weight"] = at::IValue::make_capsule(pass_weight);
    context->set_materialize_grads(false);
    context->mark_non_differentiable({all.mean, all.variance, all.count});
    const at::Tensor scale = weight ? inverse * *weight : inverse;
    const at::Tensor down = all.mean * scale;
    const at::Tensor shift = bias ? *bias - down : -down;
    const at::Tensor output = at::addcmul(by_channel(shift, x), x, by_channel(scale, x));
    return {output.to(x.scalar_type()), all.mean, all.variance, all.count};
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const bool is_differentiated = at::GradMode::is_enabled();
    try {
      const at::NoGradGuard no_grad;
      variable_list result = gradients_of(context, gradients[0]);
      if (!is_differentiated) return result;
      const at::AutoGradMode with_grad(true);
      return once_differentiable(std::move(result));
    } catch (...) {
      std::rethrow_exception(as_autograd_error(std::current_exception()));
    }
  }

 private:
  static variable_list gradients_of(AutogradContext* context, const at::Tensor& gradient) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &mean = saved[2], &inverse = saved[3];
    const auto dtype = mean.scalar_type();
    at::Tensor exact = (gradient.defined() ? gradient : at::zeros_like(x)).to(dtype);
    const at::Tensor centered = x.to(dtype) - by_channel(mean, x);
    const std::vector<int64_t> dimensions = all_but_channels(x);
    const at::Tensor sum_gradient = exact.sum(dimensions);
    const at::Tensor sum_product = (exact * centered).sum(dimensions);
    variable_list result(6);
    // Of this rank's batch: the wrapper averages them.
    const auto of = weight.defined() ? weight.scalar_type() : dtype;
    size_t input = 1;  // autograd counts tensors that are there
    if (weight.defined() && context->needs_input_grad(input++)) {
      result[1] = (sum_product * inverse).to(of);
    }
    if (context->saved_data["has_bias"].toBool() && context->needs_input_grad(input)) {
      result[2] = sum_gradient.to(of);
    }
    if (!context->needs_input_grad(0)) return result;
    const at::Tensor sums = at::stack({sum_gradient, sum_product}).div_(saved[4]);
    ReductionOptions options;
    options.group = c10::static_intrusive_pointer_cast<c10d::ProcessGroup>(
        context->saved_data["group"].toCapsule());
    // The wrapper multiplies the gradients of each rank by its weight, also what other ranks have
    // added here.
    const auto kept = c10::static_intrusive_pointer_cast<KeptWeight>(
        context->saved_data["pass_weight"].toCapsule());
    const double own = kept->weight ? kept->weight->value.load() : 1;
    if (own != 1) own == 0 ? sums.zero_() : sums.mul_(own);
    all_reduce(sums, options);
    if (own != 1) own == 0 ? sums.zero_() : sums.div_(own);
    const at::Tensor slope = sums[1] * inverse * inverse;
    exact = exact - by_channel(sums[0], x) - centered * by_channel(slope, x);
    const at::Tensor scale = weight.defined() ? inverse * weight : inverse;
    result[0] = (exact * by_channel(scale, x)).to(x.scalar_type());
    return result;
  }
};

std::optional<at::Tensor> if_defined(const at::Tensor& tensor) {
  return tensor.defined() ? std::optional(tensor) : std::nullopt;
}

}  // namespace

NormalizedBatch sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                                const at::Tensor& bias, double eps, const Group& group,
                                std::shared_ptr<const PassWeight> pass_weight) {
  check_dimensions(input);
  const Group ranks = group ? group : default_group();
  const variable_list all =
      Normalize::apply(input, if_defined(weight), if_defined(bias), eps, ranks,
                       c10::make_intrusive<KeptWeight>(std::move(pass_weight)));
  return {all[0], all[1], all[2], all[3]};
}

SyncBatchNormImpl::SyncBatchNormImpl(int64_t num_features, Group group)
    : SyncBatchNormImpl(torch::nn::BatchNormOptions(num_features), std::move(group)) {}

SyncBatchNormImpl::SyncBatchNormImpl(const torch::nn::BatchNormOptions& of, Group group)
    : NormImplBase(of), group_(std::move(group)) {}

void SyncBatchNormImpl::_check_input_dim(const at::Tensor& input) { check_dimensions(input); }

at::Tensor SyncBatchNormImpl::forward(const at::Tensor& input) {
  check_dimensions(input);
  const bool is_alone = !(group_ || is_initialized()) || world_size(group_) == 1;
  if (!is_training() || is_alone) return normalize_alone(input);
  const NormalizedBatch batch =
      sync_batch_norm(input, weight, bias, options.eps(), group_, pass_weight_);
  if (options.track_running_stats()) {
    const at::NoGradGuard no_grad;
    const double momentum = count_batch();
    const at::Tensor unbiased = batch.variance * (batch.count / (batch.count - 1).clamp_min(1));
    running_mean.lerp_(batch.mean.to(running_mean.scalar_type()), momentum);
    running_var.lerp_(unbiased.to(running_var.scalar_type()), momentum);
  }
  return batch.output;
}

at::Tensor SyncBatchNormImpl::normalize_alone(const at::Tensor& input) {
  const bool uses_batch = is_training() || !running_mean.defined();
  const double momentum = is_training() && options.track_running_stats() ? count_batch() : 0;
  return torch::nn::functional::detail::batch_norm(input, running_mean, running_var, weight, bias,
                                                   uses_batch, momentum, options.eps());
}

/// Counts one batch; returns what it counts for in the running statistics.
double SyncBatchNormImpl::count_batch() {
  num_batches_tracked += 1;
  if (options.momentum().has_value()) return *options.momentum();
  return 1.0 / num_batches_tracked.item<double>();
}

void SyncBatchNormImpl::pretty_print(std::ostream& stream) const {
  stream << std::boolalpha << "farandole::SyncBatchNorm(" << options.num_features()
         << ", eps=" << options.eps() << ", momentum=";
  if (options.momentum().has_value()) {
    stream << *options.momentum();
  } else {
    stream << "cumulative";
  }
  stream << ", affine=" << options.affine()
         << ", track_running_stats=" << options.track_running_stats() << ")";
}

void SyncBatchNormImpl::reset() {
  NormImplBase::reset();
  pass_weight_ = nullptr;
}

void SyncBatchNormImpl::set_pass_weight(std::shared_ptr<const PassWeight> pass_weight) {
  pass_weight_ = std::move(pass_weight);
}

void set_pass_weight(torch::nn::Module& module, const std::shared_ptr<const PassWeight>& weight) {
  module.apply([&](torch::nn::Module& each) {
    if (auto* norm = each.as<SyncBatchNormImpl>()) norm->set_pass_weight(weight);
  });
}

}  // namespace farandole
