// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/nn/cloneable.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <memory>
#include <ostream>

#include "farandole/ddp/pass_weight.h"
#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// A batch of all ranks: this rank's part, normalized, and statistics of all elements of a channel.
struct NormalizedBatch {
  at::Tensor output;    ///< [N, C, ...], of the input's dtype
  at::Tensor mean;      ///< [C], float32, or float64 for such inputs; without gradient, as the next
  at::Tensor variance;  ///< [C], of the population
  at::Tensor count;     ///< a scalar: elements of a channel
};

/// Batch normalization (Ioffe and Szegedy 2015, arXiv 1502.03167) with the mean and variance of the
/// batches of all ranks of `group`, which count by their elements and may be empty: one all_gather
/// of 2 C + 1 numbers, and one all_reduce of 2 C in backward. `input`: [N, C, ...]; `weight` and
/// `bias`: [C], or undefined. Gradients of weight and bias are of this rank's batch. A second
/// derivative raises an error. Throws InvalidArgument for less than two dimensions, and what
/// collectives throw. Collective.
/// `pass_weight`: the loss weight of the wrapper that averages the gradients; null: 1. Backward
/// multiplies this rank's sums by it before the all_reduce and divides the result by it. If it is
/// 0, the input gets no gradient through the statistics.
FARANDOLE_API NormalizedBatch sync_batch_norm(const at::Tensor& input, const at::Tensor& weight,
                                              const at::Tensor& bias, double eps,
                                              const Group& group,
                                              std::shared_ptr<const PassWeight> pass_weight = {});

/// SyncBatchNorm of torch's Python, for tensors of any device and inputs [N, C, ...] of any number
/// of dimensions, with the names and options of torch::nn::BatchNorm2d. Outside training, and in a
/// group of one rank, it is plain batch normalization. Threads and order: all ranks run the same
/// forwards and backwards.
class FARANDOLE_API SyncBatchNormImpl
    : public torch::nn::NormImplBase<2, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  /// `group`: whose batches are one; the default group if empty.
  explicit SyncBatchNormImpl(int64_t num_features, Group group = {});
  explicit SyncBatchNormImpl(const torch::nn::BatchNormOptions& of, Group group = {});

  /// [N, C, ...] to the same. Collective in training. Throws as sync_batch_norm().
  at::Tensor forward(const at::Tensor& input);
  void pretty_print(std::ostream& stream) const override;
  /// Also for a clone, which belongs to no wrapper.
  void reset() override;
  /// Sets the loss weight that backward uses; see sync_batch_norm(). The wrapper calls it.
  void set_pass_weight(std::shared_ptr<const PassWeight> pass_weight);

 private:
  void _check_input_dim(const at::Tensor& input) override;
  at::Tensor normalize_alone(const at::Tensor& input);
  double count_batch();

  Group group_;
  std::shared_ptr<const PassWeight> pass_weight_;
};
/// Calls set_pass_weight() of each SyncBatchNormImpl in `module`.
FARANDOLE_API void set_pass_weight(torch::nn::Module& module,
                                   const std::shared_ptr<const PassWeight>& weight);
/// See SyncBatchNormImpl.
TORCH_MODULE(SyncBatchNorm);

}  // namespace farandole
