// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/check_master_weights.h"

#include "farandole/error.h"

namespace farandole {

void check_master_weights(const MasterWeightOptions& options) {
  if (!options.stochastic_rounding || !options.keep) return;
  throw InvalidArgument("rounding-and-masters",
                        "stochastic_rounding was combined with master weights.",
                        "master weights keep the float32 value of a parameter, so the parameter "
                        "itself is rounded to nearest.",
                        "pass master_weights=false as well, which saves their memory, or leave "
                        "stochastic_rounding out.");
}

void check_can_be_rounded(const MasterWeightOptions& options, at::ScalarType dtype,
                          const std::string& parameter) {
  if (!options.stochastic_rounding || dtype != at::kHalf) return;
  throw InvalidArgument(
      "rounding-float16",
      "parameter '" + parameter + "' has dtype float16, and stochastic_rounding is on.",
      "stochastic rounding uses the lower 16 bits of float32, which works for bfloat16 because its "
      "exponents are those of float32; float16 has other exponents.",
      "use bfloat16, or keep master weights.");
}

void check_keeps_masters(const MasterWeightOptions& options) {
  if (options.keep) return;
  throw InvalidArgument(
      "masters-not-fused", "master_weights=false was passed to an optimizer that is not fused.",
      "such an optimizer steps float32 master weights in place of half-precision parameters.",
      "use SGD, Adam, AdamW, LAMB or LARS on the CPU, or keep master weights.");
}

std::string text_of(const MasterWeightOptions& options) {
  if (options.keep) return "";
  if (!options.stochastic_rounding) return ", without master weights";
  return ", rounded stochastically with seed " + std::to_string(options.rounding_seed);
}

}  // namespace farandole
