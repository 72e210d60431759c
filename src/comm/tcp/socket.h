// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/export.h"

namespace farandole::comm::tcp {

/// A socket of this process alone. A forked child (such as a DataLoader worker) would hold its
/// connection open after this process has died, so that no peer noticed: in each child the number
/// stands for /dev/null before fork() returns there.
///
/// Threads: as an int. fork() waits for constructors and destructors to end.
class FARANDOLE_API Socket {
 public:
  Socket() = default;
  explicit Socket(int number);
  ~Socket();
  Socket(Socket&& other) noexcept;
  Socket& operator=(Socket&& other) noexcept;

  int get() const { return number_; }
  bool valid() const { return number_ >= 0; }
  void reset();

 private:
  int number_ = -1;
};

}  // namespace farandole::comm::tcp
