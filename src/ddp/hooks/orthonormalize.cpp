// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooks/orthonormalize.h"

#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/where.h>

#include <optional>

namespace farandole {
namespace {

/// In float64, in which squares of float32 neither overflow nor become 0.
void normalize(at::Tensor column, double epsilon) {
  const at::Tensor norm = at::linalg_vector_norm(column, 2, std::nullopt, false, at::kDouble);
  column.div_(at::where(norm == 0, 1, norm + epsilon));
}

}  // namespace

void orthonormalize(const at::Tensor& matrix, double epsilon) {
  for (int64_t i = 0; i < matrix.size(1); ++i) {
    at::Tensor column = matrix.select(1, i);
    const at::Tensor before = matrix.narrow(1, 0, i);
    for (int projection = 0; i > 0 && projection < 3; ++projection) {
      normalize(column, 0);
      column.sub_(before.mv(before.t().mv(column)));
    }
    normalize(column, epsilon);
  }
}

}  // namespace farandole
