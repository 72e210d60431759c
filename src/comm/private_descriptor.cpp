// SPDX-License-Identifier: Apache-2.0
#include "comm/private_descriptor.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <map>
#include <mutex>
#include <utility>

#include "comm/fork_safe_mutex.h"

namespace farandole::comm {
namespace {

struct DescriptorsOfProcess {};

std::mutex& mutex() { return fork_safe_mutex<DescriptorsOfProcess>(); }

/// Guarded by mutex(); never destroyed.
std::map<int, FileIdentity>& numbers() {
  static auto* const all = new std::map<int, FileIdentity>;
  return *all;
}

/// Only system calls that a child of a process with threads may make.
void replace_in_child() {
  if (numbers().empty()) return;
  const int null = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  for (const auto& [number, file] : numbers()) {
    if (!(FileIdentity::of(number) == file)) continue;  // the program has closed it
    if (null < 0 || ::dup3(null, number, O_CLOEXEC) < 0) ::close(number);
  }
  if (null >= 0) ::close(null);
  numbers().clear();  // what the child does with them is its own
}

void add(const shm::Descriptor& descriptor) {
  // First: fork() then finds the set as it was between two calls.
  std::mutex& guard = mutex();
  static const int registered = ::pthread_atfork(nullptr, nullptr, replace_in_child);
  static_cast<void>(registered);
  const std::lock_guard<std::mutex> lock(guard);
  numbers().insert_or_assign(descriptor.get(), descriptor.file());
}

}  // namespace

PrivateDescriptor::PrivateDescriptor(int number) : descriptor_(number) {
  if (valid()) add(descriptor_);
}

PrivateDescriptor::~PrivateDescriptor() { reset(); }

PrivateDescriptor::PrivateDescriptor(PrivateDescriptor&& other) noexcept
    : descriptor_(std::move(other.descriptor_)) {}

PrivateDescriptor& PrivateDescriptor::operator=(PrivateDescriptor&& other) noexcept {
  if (this != &other) {
    reset();
    descriptor_ = std::move(other.descriptor_);
  }
  return *this;
}

void PrivateDescriptor::reset() {
  if (!valid()) return;
  const std::lock_guard<std::mutex> lock(mutex());
  const auto found = numbers().find(get());
  if (found != numbers().end() && found->second == descriptor_.file()) numbers().erase(found);
  descriptor_.reset();
}

}  // namespace farandole::comm
