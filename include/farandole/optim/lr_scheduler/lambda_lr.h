// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"

namespace farandole {

/// The initial learning rates times a function of last_epoch(). What the function throws leaves the
/// scheduler unchanged. The state does not have the function.
class FARANDOLE_API LambdaLR final : public FormulaScheduler {
 public:
  using Function = std::function<double(int64_t epoch)>;

  LambdaLR(ScheduledOptimizer optimizer, const Function& lr_lambda);
  /// One for each group; throws InvalidArgument if there are more or fewer.
  LambdaLR(ScheduledOptimizer optimizer, std::vector<Function> lr_lambdas);
  ~LambdaLR() override;

 protected:
  std::vector<double> get_lr() override;

 private:
  std::vector<Function> lr_lambdas_;
};

}  // namespace farandole
