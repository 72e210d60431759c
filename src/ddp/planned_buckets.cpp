// SPDX-License-Identifier: Apache-2.0
#include "ddp/planned_buckets.h"

namespace farandole {

ParameterKind ParameterKind::of(const at::Tensor& parameter) {
  return {parameter.requires_grad(), parameter.scalar_type(), parameter.device(),
          parameter.sizes().vec(), Buckets::strides_of_slot(parameter)};
}

bool ParameterKind::operator==(const ParameterKind& other) const {
  return is_active == other.is_active && dtype == other.dtype && device == other.device &&
         sizes == other.sizes && strides == other.strides;
}

int64_t PlannedBuckets::bytes() const {
  int64_t sum = 0;
  for (const auto& bucket : buckets->plan().buckets) sum += bucket.bytes();
  return sum;
}

}  // namespace farandole
