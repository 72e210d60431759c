// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

namespace farandole {

/// Gives freed memory back to the system: what malloc keeps would be needed twice, there and for
/// the buckets. One thread at a time.
void give_back_memory();

/// Does that while gradients move into their slots, after each 32 MiB.
class FreedMemory {
 public:
  /// Does nothing unless `gives_back`.
  explicit FreedMemory(bool gives_back) : gives_back_(gives_back) {}
  /// As many bytes were freed.
  void add(size_t bytes);

 private:
  const bool gives_back_;
  size_t bytes_ = 0;  ///< freed since the last time
};

}  // namespace farandole
