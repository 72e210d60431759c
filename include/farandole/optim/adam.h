// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/device_update_rule.h"
#include "farandole/optim/update_rule.h"

namespace farandole {

/// Those of torch.optim.Adam; of AdamW with decoupled_weight_decay.
struct AdamHyperparameters {
  double lr = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool amsgrad = false;
  bool maximize = false;
  bool decoupled_weight_decay = false;
};

/// Adam (Kingma and Ba, arXiv:1412.6980, algorithm 1), AdamW (Loshchilov and Hutter,
/// arXiv:1711.05101, algorithm 2) and AMSGrad (Reddi, Kale and Kumar, arXiv:1904.09237,
/// algorithm 2), as torch.optim writes them. In step t:
///
///   AdamW:  p = p - lr * weight_decay * p
///   Adam:   g = g + weight_decay * p    (-g to maximize)
///   m = beta1 * m + (1 - beta1) * g
///   v = beta2 * v + (1 - beta2) * g * g
///   AMSGrad: w = max(w, v), else w = v
///   p = p - lr * m / (1 - beta1^t) / (sqrt(w / (1 - beta2^t)) + eps)
///
/// m, v and w have the bits of torch's loop over single tensors on a CPU with fused multiply-add.
/// The change of p is a few units in the last place from torch's, whose square root may be MKL's.
/// Memory per element: m, v, and w of AMSGrad.
class FARANDOLE_API AdamRule final : public UpdateRule, public DeviceUpdateRule {
 public:
  /// Throws InvalidArgument for what torch.optim.Adam refuses.
  explicit AdamRule(const AdamHyperparameters& hyperparameters);
  ~AdamRule() override;

  std::string description() const override;
  std::vector<std::string> state_names() const override;
  void update(const UpdateBlock<float>& block, const StepContext& context) const override;
  void update(const UpdateBlock<double>& block, const StepContext& context) const override;

  const DeviceUpdateRule* on_device() const override { return this; }
  void update_on_device(const DeviceUpdate& pieces) const override;
  std::shared_ptr<const RuleFormulas> formulas(const StepContext& context) const override;

 private:
  const AdamHyperparameters adam_;
};

}  // namespace farandole
