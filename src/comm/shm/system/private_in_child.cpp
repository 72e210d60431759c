// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/system/private_in_child.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "comm/fork_safe_mutex.h"

namespace farandole::comm::shm {
namespace {

struct Pages {
  std::byte* data;
  size_t bytes;
  const std::byte* source;              ///< where a child finds the contents
  std::shared_ptr<Descriptor> segment;  ///< null: none is kept
  off_t offset;                         ///< in the segment
  bool are_private = false;
};

/// By address. Guarded by fork_safe_mutex<Pages>(). Never destroyed: groups may be released while
/// the process exits.
std::map<uintptr_t, Pages>& registry() {
  static auto* const instance = new std::map<uintptr_t, Pages>;
  return *instance;
}

uintptr_t address_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }

/// At least half of the allowed descriptors are left to the program.
std::shared_ptr<Descriptor> keep(const Descriptor& segment) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return nullptr;
  Descriptor kept(::fcntl(segment.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
  if (!kept.valid() || static_cast<rlim_t>(kept.get()) >= limit.rlim_cur / 2) return nullptr;
  return std::make_shared<Descriptor>(std::move(kept));
}

// The following functions run in a child of a process with threads, so they use only system calls
// and memory copies.

bool map_private(const Pages& pages) {
  return pages.segment != nullptr && pages.segment->valid() && pages.segment->is_intact() &&
         ::mmap(pages.data, pages.bytes, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE, pages.segment->get(),
                pages.offset) != MAP_FAILED;
}

void* map_anonymous(void* address, size_t bytes, int flags) {
  void* const own = ::mmap(address, bytes, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | flags, -1, 0);
  return own == MAP_FAILED ? nullptr : own;
}

bool copy(const Pages& pages) {
  if (pages.source != pages.data) {  // where the child may have no mapping yet
    void* const own = map_anonymous(pages.data, pages.bytes, MAP_FIXED);
    if (own != nullptr) std::memcpy(own, pages.source, pages.bytes);
    return own != nullptr;
  }
  void* const own = map_anonymous(nullptr, pages.bytes, 0);
  if (own == nullptr) return false;
  std::memcpy(own, pages.source, pages.bytes);
  if (::mremap(own, pages.bytes, pages.bytes, MREMAP_MAYMOVE | MREMAP_FIXED, pages.data) ==
      MAP_FAILED) {
    ::munmap(own, pages.bytes);
    return false;
  }
  return true;
}

void make_all_private() {
  for (auto& [address, pages] : registry()) {
    if (std::exchange(pages.are_private, true)) continue;
    // If there is no memory for either, a child that writes to the pages is killed; it must not
    // change its parent's.
    if (!map_private(pages) && !copy(pages)) ::mprotect(pages.data, pages.bytes, PROT_READ);
  }
  for (auto& [address, pages] : registry()) {
    if (pages.segment != nullptr) pages.segment->reset();
  }
}

void add(Pages pages) {
  static const int registered = ::pthread_atfork(nullptr, nullptr, make_all_private);
  static_cast<void>(registered);
  registry().insert_or_assign(address_of(pages.data), std::move(pages));
}

}  // namespace

void make_private_in_children(void* data, size_t bytes, const Descriptor& segment) {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Pages>());
  if (registry().count(address_of(data)) != 0) return;
  auto* const bytes_of_it = static_cast<std::byte*>(data);
  add({bytes_of_it, bytes, bytes_of_it, keep(segment), 0});
}

void make_private_in_children(void* data, size_t bytes, const void* original) {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Pages>());
  Pages pages{static_cast<std::byte*>(data), bytes, static_cast<const std::byte*>(original),
              nullptr, 0};
  auto next = registry().upper_bound(address_of(original));
  if (next != registry().begin()) {
    const Pages& all = std::prev(next)->second;
    const size_t offset = address_of(original) - address_of(all.data);
    if (!all.are_private && offset < all.bytes && bytes <= all.bytes - offset) {
      pages.segment = all.segment;
      pages.offset = all.offset + static_cast<off_t>(offset);
    }
  }
  add(std::move(pages));
}

void forget_private_in_children(void* data) {
  const std::lock_guard<std::mutex> lock(fork_safe_mutex<Pages>());
  registry().erase(address_of(data));
}

}  // namespace farandole::comm::shm
