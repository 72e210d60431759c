// SPDX-License-Identifier: Apache-2.0
#include "support/forked_child.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <thread>
#include <utility>

#include "support/ranks.h"

namespace farandole::test {

ForkedChild::ForkedChild(const std::function<bool()>& body) : pid_(::fork()) {
  if (pid_ != 0) return;
  bool good = false;
  try {
    good = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "forked child: %s\n", error.what());
  }
  ::_exit(good ? 0 : 1);
}

ForkedChild::~ForkedChild() {
  if (pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool ForkedChild::succeeded() {
  const auto deadline = std::chrono::steady_clock::now() + rank_deadline() / 2;
  int status = 0;
  while (::waitpid(pid_, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) {
      std::fprintf(stderr, "forked child %d hangs; killed\n", pid_);
      ::kill(pid_, SIGKILL);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  pid_ = 0;
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace farandole::test
