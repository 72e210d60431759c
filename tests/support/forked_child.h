// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/types.h>

#include <functional>

namespace farandole::test {

/// A forked copy of this process that runs one function and exits, without the destructors of what
/// it did not touch.
///
/// Threads: the one that made it.
class ForkedChild {
 public:
  /// `body` returns whether all went as it must; what it throws counts as no.
  explicit ForkedChild(const std::function<bool()>& body);
  /// Kills the child if nobody has waited for it.
  ~ForkedChild();
  ForkedChild(const ForkedChild&) = delete;
  ForkedChild& operator=(const ForkedChild&) = delete;

  /// Waits for the child; whether its body returned true. Kills it at the deadline.
  bool succeeded();

 private:
  pid_t pid_;
};

}  // namespace farandole::test
