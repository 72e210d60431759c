// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/check_master_weights.h"

#include "farandole/error.h"

namespace farandole {

void check_master_weights(const MasterWeightOptions& options) {
  if (!options.stochastic_rounding || !options.keep) return;
  throw InvalidArgument(
      "stochastic_rounding was asked for beside master weights.",
      "float32 values keep what rounding takes from a parameter, so it is rounded to nearest.",
      "pass master_weights=false too, which saves their memory, or leave stochastic_rounding out.");
}

void check_can_be_rounded(const MasterWeightOptions& options, at::ScalarType dtype,
                          const std::string& parameter) {
  if (!options.stochastic_rounding || dtype != at::kHalf) return;
  throw InvalidArgument(
      "parameter '" + parameter + "' is of float16, and stochastic_rounding was asked for.",
      "bfloat16 has the exponents of float32, so its steps are counted in float32's lower bits; "
      "float16 has not.",
      "make the model with bfloat16, or keep master weights.");
}

void check_keeps_masters(const MasterWeightOptions& options) {
  if (options.keep) return;
  throw InvalidArgument(
      "master_weights=false was passed to an optimizer that is not fused.",
      "it steps tensors that are given to it, which are the float32 values of half parameters.",
      "use SGD, Adam, AdamW, LAMB or LARS on the CPU, or keep master weights.");
}

std::string text_of(const MasterWeightOptions& options) {
  if (options.keep) return "";
  if (!options.stochastic_rounding) return ", without master weights";
  return ", rounded stochastically with seed " + std::to_string(options.rounding_seed);
}

}  // namespace farandole
