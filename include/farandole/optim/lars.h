// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/device_update_rule.h"
#include "farandole/optim/update_rule.h"

namespace farandole {

struct LarsHyperparameters {
  double lr = 1e-3;
  double momentum = 0.9;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  double trust_coefficient = 0.001;
  double eps = 1e-8;
  bool maximize = false;
};

/// LARS (You, Gitman and Ginsburg, Large batch training of convolutional networks,
/// arXiv:1708.03888, algorithm 1). For a whole parameter p:
///
///   local_lr = trust_coefficient * norm(p) / (norm(g) + weight_decay * norm(p) + eps)
///   d = local_lr * (g + weight_decay * p)   (-g to maximize; local_lr = 1 if a norm is 0)
///   b = d in the first step, then momentum * b + (1 - dampening) * d
///   p = p - lr * b                          (Nesterov: p - lr * (d + momentum * b))
///
/// This is torch's SGD with d in place of the gradient, as torchlars and Apex's LARC write it: lr
/// stands outside of b. The paper has it inside, which is the same while lr does not change.
/// Squares are summed in float64, in the same order on every CPU; how a parameter is cut into
/// blocks changes the last bits of the sum alone. Memory per element: b, if there is a momentum.
class FARANDOLE_API LarsRule final : public UpdateRule, public DeviceUpdateRule {
 public:
  /// Throws InvalidArgument for a negative number, and for what torch.optim.SGD refuses.
  explicit LarsRule(const LarsHyperparameters& hyperparameters);
  ~LarsRule() override;

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
  const LarsHyperparameters lars_;
};

}  // namespace farandole
