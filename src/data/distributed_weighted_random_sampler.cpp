// SPDX-License-Identifier: Apache-2.0
#include "farandole/data/distributed_weighted_random_sampler.h"

#include <ATen/ops/isfinite.h>
#include <ATen/ops/tensor.h>

#include <string>

#include "data/argument_check.h"
#include "farandole/data/epoch_order.h"

namespace farandole {
namespace {

constexpr int64_t kMostWeights = 1 << 24;  // of torch.multinomial

void check_weights(const at::Tensor& weights, int64_t num_samples, bool replacement) {
  const auto check = [](bool holds, const std::string& got, const std::string& rule) {
    check_sampler(holds, "DistributedWeightedRandomSampler", got, rule);
  };
  check(num_samples >= 1, "num_samples " + std::to_string(num_samples),
        "it is the number of samples of all ranks in an epoch, at least 1.");
  check(weights.numel() <= kMostWeights, std::to_string(weights.numel()) + " weights",
        "torch.multinomial takes at most 2^24.");
  check(weights.dim() == 1, "weights of " + std::to_string(weights.dim()) + " dimensions",
        "there is one weight for each sample.");
  const bool is_right = weights.isfinite().all().item<bool>() && (weights >= 0).all().item<bool>();
  check(is_right, "a negative or infinite weight or NaN", "a weight is a number of at least 0.");
  const auto possible = (weights > 0).sum().item<int64_t>();
  check(possible >= (replacement ? 1 : num_samples),
        "num_samples " + std::to_string(num_samples) + " and " + std::to_string(possible) +
            " weights above 0",
        "samples with weight 0 are not drawn, and without replacement each only once.");
}

}  // namespace

DistributedWeightedRandomSampler::DistributedWeightedRandomSampler(
    const std::vector<double>& weights, int64_t num_samples, bool replacement,
    const SamplerOptions& options)
    : EpochSampler(static_cast<int64_t>(weights.size()),
                   share(at::tensor(weights, at::kDouble), num_samples, replacement, options)) {}

EpochShare DistributedWeightedRandomSampler::share(const at::Tensor& weights, int64_t num_samples,
                                                   bool replacement,
                                                   const SamplerOptions& options) {
  const at::Tensor own = weights.detach().to(at::kCPU, at::kDouble).clone();
  check_weights(own, num_samples, replacement);
  const auto order = [own, num_samples, replacement](uint64_t seed) {
    return weighted_order(own, num_samples, replacement, seed);
  };
  return {num_samples,
          order,
          options,
          {{"replacement", replacement ? 1 : 0}, {"dataset_size", own.numel()}}};
}

}  // namespace farandole
