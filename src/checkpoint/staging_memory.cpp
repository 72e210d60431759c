// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/staging_memory.h"

#include <ATen/ops/empty.h>

namespace farandole::checkpoint {
namespace {

constexpr int64_t kPieceBytes = 32 << 20;
/// What is larger has memory of its own.
constexpr int64_t kMostSharing = kPieceBytes / 4;
/// Tensors begin at such a multiple, as vector loads want it.
constexpr int64_t kBetweenTensors = 64;

}  // namespace

at::Tensor StagingMemory::take(int64_t elements, at::ScalarType dtype) {
  const int64_t bytes = elements * static_cast<int64_t>(c10::elementSize(dtype));
  if (bytes > kMostSharing) return at::empty({elements}, dtype);
  const std::lock_guard<std::mutex> guard(mutex_);
  if (!piece_.defined() || bytes > piece_.numel() - used_) {
    piece_ = at::empty({kPieceBytes}, at::kByte);
    used_ = 0;
  }
  at::Tensor taken = piece_.narrow(0, used_, bytes).view(dtype);
  used_ += (bytes + kBetweenTensors - 1) / kBetweenTensors * kBetweenTensors;
  return taken;
}

}  // namespace farandole::checkpoint
