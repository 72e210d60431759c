// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <mutex>

namespace farandole::checkpoint {

/// Memory of tensors that are dropped at about the same time. Many small ones share a piece, which
/// is given back with the last of them. In plain pages: huge ones, which are used once, are slow to
/// get in virtual machines whose host takes free ones back. Threads: any.
class StagingMemory {
 public:
  /// A tensor of one dimension on the CPU, not initialized.
  at::Tensor take(int64_t elements, at::ScalarType dtype);

 private:
  std::mutex mutex_;
  at::Tensor piece_;  ///< bytes; guarded by mutex_, as used_
  int64_t used_ = 0;
};

}  // namespace farandole::checkpoint
