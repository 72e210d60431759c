// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooks/largest_elements.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <utility>
#include <vector>

namespace farandole {
namespace {

/// The magnitude as an unsigned integer that has the same order: the bits of a float32 without its
/// sign.
uint32_t magnitude_of(const float* value) {
  uint32_t bits;
  std::memcpy(&bits, value, sizeof(bits));
  return bits & 0x7fffffffU;
}

/// Classes of magnitudes: the exponent and four bits. There are few enough for the counts to stay
/// in the first-level cache, and enough for each class to hold few elements.
constexpr uint32_t kShift = 19;
constexpr size_t kClasses = size_t{1} << (31 - kShift);

/// The class that holds the k-th largest element, and how many elements of this class are among the
/// k.
struct Border {
  uint32_t magnitude_class;
  int64_t wanted;
};

Border find_border(const float* values, int64_t count, int64_t k) {
  std::vector<int64_t> members(kClasses, 0);
  for (int64_t i = 0; i < count; ++i) ++members[magnitude_of(values + i) >> kShift];
  uint32_t magnitude_class = kClasses - 1;
  while (members[magnitude_class] < k) k -= members[magnitude_class--];
  return {magnitude_class, k};
}

void select(const float* values, int64_t count, int64_t k, int64_t* indices) {
  const Border border = find_border(values, count, k);
  std::vector<std::pair<uint32_t, int64_t>> candidates;  // inverted magnitude, and index
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = magnitude_of(values + i);
    if (magnitude >> kShift < border.magnitude_class) continue;
    if (magnitude >> kShift > border.magnitude_class) {
      *indices++ = i;
    } else {
      candidates.emplace_back(~magnitude, i);
    }
  }
  const auto end = candidates.begin() + border.wanted;
  std::nth_element(candidates.begin(), end, candidates.end());
  for (auto chosen = candidates.begin(); chosen != end; ++chosen) *indices++ = chosen->second;
}

}  // namespace

at::Tensor largest_elements(const at::Tensor& values, int64_t k) {
  if (!values.is_cpu() || values.scalar_type() != at::kFloat || !values.is_contiguous()) {
    return std::get<1>(at::topk(values.abs(), k, /*dim=*/0, /*largest=*/true, /*sorted=*/false));
  }
  at::Tensor indices = at::empty({k}, values.options().dtype(at::kLong));
  if (k == 0) return indices;
  select(values.const_data_ptr<float>(), values.numel(), k, indices.mutable_data_ptr<int64_t>());
  return indices;
}

}  // namespace farandole
