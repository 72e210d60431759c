// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "farandole/export.h"
#include "farandole/optim/lr_scheduler/optimizer_scheduler.h"
#include "farandole/optim/lr_scheduler/per_group.h"

namespace farandole {

struct ReduceLROnPlateauOptions {
  bool is_max = false;            ///< torch's mode="max": a metric that should grow
  double factor = 0.1;            ///< on learning rates
  int64_t patience = 10;          ///< steps without improvement that are let pass
  double threshold = 1e-4;        ///< of what counts as an improvement
  bool is_threshold_abs = false;  ///< torch's threshold_mode="abs" in place of "rel"
  int64_t cooldown = 0;           ///< steps after a reduction that are not counted
  PerGroup min_lr = 0.0;
  double eps = 1e-8;  ///< a reduction that is not larger is left out
};

/// Multiplies learning rates by a factor when a metric has stopped to improve.
///
/// All ranks must pass the same metric, such as an average over the ranks: learning rates of their
/// own would let the parameters of the ranks drift apart (a ZeroRedundancyOptimizer throws a
/// StepError).
class FARANDOLE_API ReduceLROnPlateau final : public OptimizerScheduler {
 public:
  /// Throws InvalidArgument unless 0 <= factor < 1, no number is negative, and min_lr fits.
  explicit ReduceLROnPlateau(ScheduledOptimizer optimizer,
                             const ReduceLROnPlateauOptions& options = {});
  ~ReduceLROnPlateau() override;

  /// Call it after each validation.
  void step(double metric);

 protected:
  void name_fields(SchedulerFields& fields) override;

 private:
  bool is_better(double metric) const;
  void reduce_lr();

  ReduceLROnPlateauOptions options_;
  std::optional<double> best_;
  int64_t cooldown_counter_ = 0;
  int64_t num_bad_epochs_ = 0;
};

}  // namespace farandole
