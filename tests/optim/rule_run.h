// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "farandole/optim/update_rule.h"

namespace farandole::test {

/// Lengths that no SIMD width divides, and some that it does.
constexpr int64_t kOddLengths[] = {1, 3, 15, 16, 17, 64, 4097};

/// Numbers of both signs and many magnitudes, other ones for each `seed`.
inline at::Tensor values(int64_t elements, int64_t seed, at::ScalarType type = at::kFloat) {
  const at::Tensor index = at::arange(elements, at::kDouble) + 1000.0 * static_cast<double>(seed);
  const at::Tensor magnitude = (index * 0.7531).sin().mul(3).exp();
  return (index * 1.3717).cos().mul(magnitude).to(type);
}

/// A parameter that a rule alone trains, block by block; float32 or float64.
class RuleRun {
 public:
  /// Blocks have `block` elements, the last one what is left.
  RuleRun(const UpdateRule& rule, const at::Tensor& parameter, int64_t block = 1000)
      : parameter_(parameter.clone()), block_(block) {
    for (size_t s = 0; s < rule.state_names().size(); ++s) {
      states_.push_back(at::zeros_like(parameter_));
    }
  }

  void step(const UpdateRule& rule, const at::Tensor& gradient) {
    ++steps_;
    if (parameter_.scalar_type() == at::kDouble) return step_typed<double>(rule, gradient);
    step_typed<float>(rule, gradient);
  }

  const at::Tensor& parameter() const { return parameter_; }
  const at::Tensor& state(size_t index) const { return states_[index]; }
  const std::vector<double>& sums() const { return sums_; }

 private:
  template <class T>
  void step_typed(const UpdateRule& rule, const at::Tensor& gradient) {
    sums_.assign(static_cast<size_t>(rule.sums()), 0);
    const StepContext context{steps_, steps_ == 1, sums_.empty() ? nullptr : sums_.data()};
    if (!sums_.empty()) {
      for_each_block<T>(gradient.const_data_ptr<T>(), [&](const UpdateBlock<T>& block) {
        rule.measure(block, context, sums_.data());
      });
    }
    for_each_block<T>(gradient.const_data_ptr<T>(),
                      [&](const UpdateBlock<T>& block) { rule.update(block, context); });
  }

  template <class T, class Body>
  void for_each_block(const T* gradient, const Body& body) const {
    for (int64_t first = 0; first < parameter_.numel(); first += block_) {
      std::vector<T*> states;
      for (const at::Tensor& state : states_) states.push_back(state.data_ptr<T>() + first);
      body(UpdateBlock<T>{parameter_.data_ptr<T>() + first, gradient + first, states.data(),
                          std::min(block_, parameter_.numel() - first)});
    }
  }

  at::Tensor parameter_;
  std::vector<at::Tensor> states_;
  std::vector<double> sums_;
  int64_t block_;
  int64_t steps_ = 0;
};

/// The largest distance of two tensors, relative to the largest element of `expected`.
inline double error_of(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor wide = expected.to(at::kDouble);
  const double largest = wide.abs().max().item<double>();
  return (actual.to(at::kDouble) - wide).abs().max().item<double>() / std::max(largest, 1e-30);
}

}  // namespace farandole::test
