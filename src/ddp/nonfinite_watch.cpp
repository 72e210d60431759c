// SPDX-License-Identifier: Apache-2.0
#include "ddp/nonfinite_watch.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/stack.h>

#include <algorithm>

#include "ddp/finite_check.h"

namespace farandole {

void NonfiniteWatch::check_gradient(size_t index, ParameterGradient& parameter, bool records,
                                    int world_size) {
  const at::Tensor& gradient = parameter.parameter().grad();
  const bool reports = this->reports() && nonfinite_ < 0;
  records = records && watches_;
  parameter.note_finite(false);
  if (!gradient.defined() || (!reports && !records)) return;
  if (!records && !gradient.is_cpu() && gradient.layout() == at::kStrided) {
    on_device_.emplace_back(index, at::isfinite(gradient).all());
    return;
  }
  const size_t terms = records ? static_cast<size_t>(world_size) : 1;
  if (is_finite(gradient, terms)) {
    parameter.note_finite(true);
  } else if (reports && (terms == 1 || !is_finite(gradient))) {
    nonfinite_ = static_cast<int64_t>(index);
  }
}

int64_t NonfiniteWatch::nonfinite() {
  if (on_device_.empty()) return nonfinite_;
  std::vector<at::Tensor> flags;
  const at::Device device = on_device_.front().second.device();
  for (const auto& [index, is_finite] : on_device_) flags.push_back(is_finite.to(device));
  const at::Tensor are_finite = at::stack(flags).cpu();
  for (size_t i = 0; i < flags.size() && nonfinite_ < 0; ++i) {
    if (!are_finite.const_data_ptr<bool>()[i]) {
      nonfinite_ = static_cast<int64_t>(on_device_[i].first);
    }
  }
  on_device_.clear();
  return nonfinite_;
}

void NonfiniteWatch::end_backward() {
  nonfinite_ = -1;
  on_device_.clear();
}

void NonfiniteWatch::forget_fixed(const GradientStore& gradients) {
  if (nonfinite() < 0) return;
  const at::Tensor& gradient = gradients[static_cast<size_t>(nonfinite_)].parameter().grad();
  if (!gradient.defined() || is_finite(gradient)) nonfinite_ = -1;
}

void NonfiniteWatch::note_averages(const std::vector<BackwardReport>& reports,
                                   const BucketConsumer& consumer) {
  const bool all_checked = std::all_of(
      reports.begin(), reports.end(),
      [](const BackwardReport& report) { return report.has(BackwardReport::kCheckedFinite); });
  if (all_checked) averages_are_finite_ = consumer.are_finite();
}

std::vector<at::Tensor> NonfiniteWatch::unchecked_gradients(const GradientStore& gradients,
                                                            bool is_sharded) const {
  std::vector<at::Tensor> unchecked;
  for (size_t index = 0; index < gradients.size(); ++index) {
    const ParameterGradient& parameter = gradients[index];
    const at::Tensor& gradient = parameter.parameter().grad();
    const bool is_checked =
        is_sharded ? parameter.is_known_finite()
                   : averages_are_finite_.value_or(true) && !parameter.is_other_result();
    if (gradient.defined() && !is_checked) unchecked.push_back(gradient);
  }
  return unchecked;
}

}  // namespace farandole
