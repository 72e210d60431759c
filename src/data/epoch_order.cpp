// SPDX-License-Identifier: Apache-2.0
#include "farandole/data/epoch_order.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/multinomial.h>
#include <ATen/ops/randperm.h>

#include <algorithm>
#include <utility>

namespace farandole {
namespace {

std::vector<int64_t> numbers_of(const at::Tensor& indices) {
  const at::Tensor own = indices.contiguous();
  const int64_t* const first = own.const_data_ptr<int64_t>();
  return {first, first + own.numel()};
}

}  // namespace

std::vector<int64_t> shuffled_order(int64_t size, uint64_t seed) {
  return numbers_of(at::randperm(size, at::make_generator<at::CPUGeneratorImpl>(seed), at::kLong));
}

std::vector<int64_t> weighted_order(const at::Tensor& weights, int64_t num_samples,
                                    bool replacement, uint64_t seed) {
  return numbers_of(at::multinomial(weights, num_samples, replacement,
                                    at::make_generator<at::CPUGeneratorImpl>(seed)));
}

std::vector<int64_t> bucketed_order(std::vector<int64_t> order, const std::vector<int64_t>& lengths,
                                    int64_t batch_size, int64_t bucket_batches) {
  const auto size = static_cast<int64_t>(order.size());
  const int64_t bucket = batch_size * std::min(bucket_batches, size / batch_size + 1);
  bool is_descending = true;
  for (int64_t begin = 0; begin < size; begin += bucket) {
    const auto is_before = [&](int64_t one, int64_t other) {
      const int64_t own = lengths[static_cast<size_t>(one)];
      const int64_t next = lengths[static_cast<size_t>(other)];
      return is_descending ? own > next : own < next;
    };
    std::stable_sort(order.begin() + begin, order.begin() + std::min(size, begin + bucket),
                     is_before);
    is_descending = !is_descending;
  }
  return order;
}

}  // namespace farandole
