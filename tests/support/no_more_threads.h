// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/resource.h>
#include <unistd.h>

namespace farandole::test {

/// While it lives, this process can start no thread: it has the limit of processes of a user who
/// may have none more. Root has no such limit, so root is another user meanwhile.
class NoMoreThreads {
 public:
  NoMoreThreads() {
    ::getrlimit(RLIMIT_NPROC, &before_);
    const rlimit none{0, before_.rlim_max};
    ::setrlimit(RLIMIT_NPROC, &none);
    constexpr uid_t kNobody = 65534;
    if (was_root_) ::setresuid(kNobody, kNobody, 0);
  }
  ~NoMoreThreads() {
    if (was_root_) ::setresuid(0, 0, 0);
    ::setrlimit(RLIMIT_NPROC, &before_);
  }
  NoMoreThreads(const NoMoreThreads&) = delete;
  NoMoreThreads& operator=(const NoMoreThreads&) = delete;

 private:
  const bool was_root_ = ::geteuid() == 0;
  rlimit before_{};
};

}  // namespace farandole::test
