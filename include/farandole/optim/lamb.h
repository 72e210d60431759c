// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/device_update_rule.h"
#include "farandole/optim/update_rule.h"

namespace farandole {

struct LambHyperparameters {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-6;
  double weight_decay = 0.01;
  bool bias_correction = true;
  bool maximize = false;
};

/// LAMB (You et al., Large batch optimization for deep learning: training BERT in 76 minutes,
/// arXiv:1904.00962, algorithm 2, with the identity as phi). In step t, for a whole parameter p:
///
///   m = beta1 * m + (1 - beta1) * g     (-g to maximize)
///   v = beta2 * v + (1 - beta2) * g * g
///   u = m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay * p
///   p = p - lr * norm(p) / norm(u) * u  (no factor of norms if one of them is 0)
///
/// Without bias_correction the powers of beta are left out. measure() adds up the squares of p and
/// u; update() computes m, v and u again, so a step that ends between the two has changed nothing.
/// Squares are summed in float64, in the same order on every CPU; how a parameter is cut into
/// blocks changes the last bits of the sum alone. Memory per element: m and v.
class FARANDOLE_API LambRule final : public UpdateRule, public DeviceUpdateRule {
 public:
  /// Throws InvalidArgument if a number is negative, or a beta is not less than 1.
  explicit LambRule(const LambHyperparameters& hyperparameters);
  ~LambRule() override;

  std::string description() const override;
  std::vector<std::string> state_names() const override;
  int sums() const override { return 2; }
  void measure(const UpdateBlock<float>& block, const StepContext& context,
               double* sums) const override;
  void measure(const UpdateBlock<double>& block, const StepContext& context,
               double* sums) const override;
  void update(const UpdateBlock<float>& block, const StepContext& context) const override;
  void update(const UpdateBlock<double>& block, const StepContext& context) const override;

  const DeviceUpdateRule* on_device() const override { return this; }
  std::vector<std::vector<at::Tensor>> measure_on_device(const DeviceUpdate& pieces) const override;
  void update_on_device(const DeviceUpdate& pieces) const override;
  std::shared_ptr<const RuleFormulas> formulas(const StepContext& context) const override;

 private:
  const LambHyperparameters lamb_;
};

}  // namespace farandole
