// SPDX-License-Identifier: Apache-2.0
#include "comm/private_descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <set>
#include <utility>

#include "comm/fork_safe_mutex.h"

namespace farandole::comm {
namespace {

struct DescriptorsOfProcess {};

std::mutex& mutex() { return fork_safe_mutex<DescriptorsOfProcess>(); }

/// Guarded by mutex(); never destroyed.
std::set<int>& numbers() {
  static auto* const all = new std::set<int>;
  return *all;
}

/// Only system calls that a child of a process with threads may make.
void replace_in_child() {
  if (numbers().empty()) return;
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const int number : numbers()) {
    if (null < 0 || ::dup3(null, number, O_CLOEXEC) < 0) ::close(number);
  }
  if (null >= 0) ::close(null);
  numbers().clear();  // what the child does with them is its own
}

void add(int number) {
  // First: fork() then finds the set as it was between two calls.
  std::mutex& guard = mutex();
  static const int registered = ::pthread_atfork(nullptr, nullptr, replace_in_child);
  static_cast<void>(registered);
  const std::lock_guard<std::mutex> lock(guard);
  numbers().insert(number);
}

}  // namespace

PrivateDescriptor::PrivateDescriptor(int number) : number_(number) {
  if (valid()) add(number);
}

PrivateDescriptor::~PrivateDescriptor() { reset(); }

PrivateDescriptor::PrivateDescriptor(PrivateDescriptor&& other) noexcept
    : number_(std::exchange(other.number_, -1)) {}

PrivateDescriptor& PrivateDescriptor::operator=(PrivateDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    number_ = std::exchange(other.number_, -1);
  }
  return *this;
}

void PrivateDescriptor::reset() {
  if (!valid()) return;
  const std::lock_guard<std::mutex> lock(mutex());
  numbers().erase(number_);
  ::close(std::exchange(number_, -1));
}

}  // namespace farandole::comm
