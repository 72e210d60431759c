// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "comm/shm/system/descriptor.h"
#include "farandole/export.h"

namespace farandole::comm {

/// A Descriptor of a file or socket of this process alone. A forked child (such as a DataLoader
/// worker) would hold its connection or lock after this process has died, so that nobody noticed:
/// in each child the number stands for /dev/null before fork() returns there.
///
/// Threads: as an int. fork() waits for constructors and destructors to end.
class FARANDOLE_API PrivateDescriptor {
 public:
  PrivateDescriptor() = default;
  explicit PrivateDescriptor(int number);
  ~PrivateDescriptor();
  PrivateDescriptor(PrivateDescriptor&& other) noexcept;
  PrivateDescriptor& operator=(PrivateDescriptor&& other) noexcept;

  int get() const { return descriptor_.get(); }
  bool valid() const { return descriptor_.valid(); }
  bool is_intact() const { return descriptor_.is_intact(); }
  void reset();

 private:
  shm::Descriptor descriptor_;
};

}  // namespace farandole::comm
