// SPDX-License-Identifier: Apache-2.0
#include "amp/unscale.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/full.h>
#include <ATen/ops/view_as_real.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <utility>

#include "farandole/error.h"
#include "kernels/move_kernels.h"
#include "optim/step/parallel.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

/// Elements of a block, and the number of blocks that are worth waking a thread for.
constexpr size_t kBlock = 16384;
constexpr int64_t kBlocksPerThread = 4;

/// A run of elements in host memory.
struct Run {
  std::byte* first;
  size_t count;
  MoveKernel loop;
};

/// The elements of a gradient as a tensor that may be changed in place.
at::Tensor elements_of(const at::Tensor& parameter) {
  at::Tensor& gradient = parameter.mutable_grad();
  if (gradient.layout() == at::kSparse) {
    // Otherwise values of equal indices would be added up after the check.
    if (gradient.scalar_type() == at::kHalf) gradient = gradient.coalesce();
    return gradient._values();
  }
  const bool is_plain = gradient.layout() == at::kStrided && !gradient.is_conj() &&
                        !gradient.is_neg() && gradient.is_non_overlapping_and_dense();
  if (!is_plain) gradient = gradient.to_dense().contiguous().clone().resolve_conj().resolve_neg();
  return gradient;
}

MoveKernel loop_of(const at::Tensor& elements) {
  const auto dtype = data_type_of(c10::toRealValueType(elements.scalar_type()));
  const MoveKernel loop = dtype ? move_kernel(*dtype, *dtype, false, true) : nullptr;
  if (loop != nullptr) return loop;
  throw InvalidArgument(
      "scaler-dtype",
      std::string("a GradScaler got a gradient of dtype ") + c10::toString(elements.scalar_type()) +
          ".",
      "it divides gradients of float64, float32, bfloat16, float16 and complex dtypes.",
      "convert the parameter to one of them.");
}

void cut(const at::Tensor& elements, std::vector<Run>& runs) {
  const MoveKernel loop = loop_of(elements);
  const size_t reals = static_cast<size_t>(elements.numel()) * (elements.is_complex() ? 2 : 1);
  if (reals == 0) return;
  const size_t bytes = elements.nbytes() / reals;
  auto* const first = static_cast<std::byte*>(elements.mutable_data_ptr());
  for (size_t begin = 0; begin < reals; begin += kBlock) {
    runs.push_back({first + begin * bytes, std::min(kBlock, reals - begin), loop});
  }
}

bool unscale_runs(const std::vector<Run>& runs, double factor) {
  std::atomic<bool> all{true};
  run_parallel(static_cast<int64_t>(runs.size()), kBlocksPerThread,
               [&](int64_t begin, int64_t end) {
                 for (int64_t i = begin; i < end; ++i) {
                   const Run& run = runs[static_cast<size_t>(i)];
                   if (run.loop(run.first, run.first, run.count, factor)) continue;
                   all.store(false, std::memory_order_relaxed);
                 }
               });
  return all;
}

/// Gradients of one accelerator, by dtype.
using Elsewhere = std::map<at::ScalarType, std::vector<at::Tensor>>;

/// Uses torch's kernel, which takes tensors of one dtype. The host waits for the device, once.
bool unscale_elsewhere(const Elsewhere& gradients, double factor) {
  const auto options =
      at::TensorOptions(gradients.begin()->second.front().device()).dtype(at::kFloat);
  at::Tensor found = at::full({}, 0.0, options);
  const at::Tensor by = at::full({}, factor, options);
  for (const auto& [dtype, elements] : gradients) {
    at::_amp_foreach_non_finite_check_and_unscale_(elements, found, by);
  }
  return found.item<float>() == 0;
}

}  // namespace

bool unscale_gradients(const std::vector<at::Tensor>& parameters, double factor) {
  const at::NoGradGuard no_grad;
  std::vector<Run> runs;
  std::map<std::string, Elsewhere> elsewhere;  // by device
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined()) continue;
    const at::Tensor elements = elements_of(parameter);
    if (elements.is_cpu()) {
      cut(elements, runs);
      if (!elements.is_inference()) elements.unsafeGetTensorImpl()->bump_version();
    } else {
      const at::Tensor reals = elements.is_complex() ? at::view_as_real(elements) : elements;
      elsewhere[elements.device().str()][reals.scalar_type()].push_back(reals);
    }
  }
  bool all = unscale_runs(runs, factor);
  for (const auto& [device, gradients] : elsewhere) all &= unscale_elsewhere(gradients, factor);
  return all;
}

}  // namespace farandole
