// SPDX-License-Identifier: Apache-2.0
#include "kernels/half_kernels.h"

#include "kernels/half_types.h"
#include "kernels/target_clones.h"

namespace farandole {
namespace {

template <class Half>
FARANDOLE_INLINE void take_over(const uint16_t* halves, float* master, size_t count) {
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    const float own = master[i];
    const auto outside = static_cast<float>(Half{halves[i]});
    master[i] = Half::from(own).bits == halves[i] ? own : outside;
  }
}

FARANDOLE_CLONES void take_over_float16(const uint16_t* halves, float* master, size_t count) {
  take_over<comm::Float16>(halves, master, count);
}
FARANDOLE_CLONES void take_over_bfloat16(const uint16_t* halves, float* master, size_t count) {
  take_over<comm::BFloat16>(halves, master, count);
}

}  // namespace

void refresh_masters(const uint16_t* halves, float* master, size_t count, comm::DataType dtype) {
  const bool is_float16 = dtype == comm::DataType::kFloat16;
  (is_float16 ? take_over_float16 : take_over_bfloat16)(halves, master, count);
}

}  // namespace farandole
