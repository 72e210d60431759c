// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/device_update_rule.h"
#include "farandole/optim/update_rule.h"

namespace farandole {

/// Those of torch.optim.SGD.
struct SgdHyperparameters {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
};

/// Stochastic gradient descent with momentum (Sutskever, Martens, Dahl and Hinton, On the
/// importance of initialization and momentum in deep learning, ICML 2013), as torch.optim.SGD
/// writes it:
///
///   d = g + weight_decay * p            (-g to maximize)
///   b = d in the first step, then momentum * b + (1 - dampening) * d
///   p = p - lr * b                      (Nesterov: p - lr * (d + momentum * b); no momentum: d)
///
/// The bits are those of torch's loop over single tensors on a CPU with fused multiply-add.
/// Memory per element: b, if there is a momentum.
class FARANDOLE_API SgdRule final : public UpdateRule, public DeviceUpdateRule {
 public:
  /// Throws InvalidArgument for what torch.optim.SGD refuses.
  explicit SgdRule(const SgdHyperparameters& hyperparameters);
  ~SgdRule() override;

  std::string description() const override;
  std::vector<std::string> state_names() const override;
  void update(const UpdateBlock<float>& block, const StepContext& context) const override;
  void update(const UpdateBlock<double>& block, const StepContext& context) const override;

  const DeviceUpdateRule* on_device() const override { return this; }
  void update_on_device(const DeviceUpdate& pieces) const override;
  std::shared_ptr<const RuleFormulas> formulas(const StepContext& context) const override;

 private:
  const SgdHyperparameters sgd_;
};

}  // namespace farandole
