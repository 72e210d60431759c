// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Generator.h>

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "farandole/ddp/comm_hook.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// The names and defaults are those of torch's PowerSGDState.
struct PowerSgdOptions {
  /// Columns of P and Q: more are slower and more accurate.
  int64_t matrix_approximation_rank = 1;
  /// Iterations of plain averages before the first compressed one, while gradients change most.
  int64_t start_iter = 1000;
  /// A parameter is compressed if that makes it smaller by more than this factor.
  double min_compression_rate = 2;
  /// Whether what the approximation leaves out is added to the next step's gradient.
  bool use_error_feedback = true;
  /// Whether Q starts from that of the step before, instead of random numbers.
  bool warm_start = true;
  /// Added to norms that columns are divided by. Columns of zeros need none here: they stay zero.
  double orthogonalization_epsilon = 0;
  /// Of the random numbers; the same on all ranks.
  uint64_t random_seed = 0;
};

/// Sends a gradient as two thin matrices (Vogels, Karimireddy and Jaggi, PowerSGD,
/// arXiv:1905.13727, algorithms 1 and 2). A parameter's gradient, seen as a matrix of size(0) rows,
/// becomes on rank w, with Q of the step before,
///
///   M_w = gradient_w + error_w
///   P   = orthonormal columns of mean_w(M_w * orthonormal columns of Q)
///   Q_w = M_w^T P,   Q = mean_w(Q_w)
///   error_w = M_w - P Q_w^T,   result = P Q^T
///
/// Vectors, and matrices that would not become smaller by more than min_compression_rate, are
/// averaged as they are. Half types are computed, kept and sent in float32.
///
/// Q is reduced when runHook() is called for the next bucket, so that all ranks reduce in the same
/// order and backward goes on meanwhile; the bucket that isLast() waits for P.
/// All ranks have the same bits if their CPUs and thread counts are the same (matrix products are
/// torch's).
/// Memory: the error, as large as the compressed gradients, and Q, of each parameter; both start
/// anew with a new plan. A step with NaN or Inf resets the error and Q of its parameter.
/// Threads: as CommHook.
class FARANDOLE_API PowerSgdHook : public CommHook {
 public:
  /// `group`: of any backend; the empty pointer means the default group. Throws InvalidArgument for
  /// an option out of range.
  explicit PowerSgdHook(const Group& group = {}, const PowerSgdOptions& options = {});
  ~PowerSgdHook() override;

  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override;
  /// Forgets the errors and Q.
  void begin_plan() override;

 private:
  struct State;
  struct Matrix;
  struct Exchange;

  std::shared_ptr<Exchange> begin(const c10d::GradBucket& bucket);
  State& state_of(const at::Tensor& parameter);
  int64_t rank_of(const at::Tensor& gradient) const;
  Matrix matrix_of(const at::Tensor& gradient, const at::Tensor& parameter);
  void reduce_p(Exchange& exchange);
  void choose_q(Matrix& matrix);
  void reduce_q(const std::shared_ptr<Exchange>& exchange);

  const Group group_;
  const PowerSgdOptions options_;
  at::Generator random_;
  int64_t iteration_ = 0;                                     ///< whole ones that have begun
  std::unordered_map<const c10::TensorImpl*, State> states_;  ///< by parameter
  std::shared_ptr<Exchange> unfinished_;  ///< of the bucket before, whose Q is to be reduced
};

}  // namespace farandole
