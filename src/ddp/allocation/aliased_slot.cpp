// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/aliased_slot.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <utility>

#include "comm/shm/system/private_in_child.h"
#include "ddp/allocation/lent_memory.h"

namespace farandole {
namespace {

/// An eviction costs more than a copy: at first four are allowed, then one for 16 gradients.
constexpr int kCostOfEviction = 16;
constexpr int kMostCredit = 3 * kCostOfEviction;

size_t page_size() {
  static const auto bytes = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  return bytes;
}

std::byte* page_of(std::byte* data) {
  return data - reinterpret_cast<uintptr_t>(data) % page_size();
}

size_t whole_pages(size_t bytes) { return (bytes + page_size() - 1) / page_size() * page_size(); }

/// Maps shared pages once more (mremap(2): an old size of 0), at `target` if there is one.
std::byte* map_again(std::byte* pages, size_t bytes, std::byte* target = nullptr) {
  void* const mapped = target == nullptr
                           ? ::mremap(pages, 0, bytes, MREMAP_MAYMOVE)
                           : ::mremap(pages, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, target);
  if (mapped == MAP_FAILED) return nullptr;
  ::madvise(mapped, bytes, MADV_DONTFORK);
  comm::shm::make_private_in_children(mapped, bytes, pages);
  return static_cast<std::byte*>(mapped);
}

}  // namespace

std::shared_ptr<AliasedSlot> AliasedSlot::of(void* data, size_t bytes, std::shared_ptr<void> owner,
                                             size_t alignment) {
  if (bytes == 0 || reinterpret_cast<uintptr_t>(data) % alignment != 0) return nullptr;
  std::shared_ptr<AliasedSlot> slot(
      new AliasedSlot(static_cast<std::byte*>(data), bytes, std::move(owner)));
  return slot->alias_ != nullptr ? slot : nullptr;
}

AliasedSlot::AliasedSlot(std::byte* data, size_t bytes, std::shared_ptr<void> owner)
    : pages_(page_of(data)),
      page_bytes_(whole_pages(static_cast<size_t>(data - pages_) + bytes)),
      offset_(static_cast<size_t>(data - pages_)),
      bytes_(bytes),
      owner_(std::move(owner)),
      alias_(map_again(pages_, page_bytes_)),
      credit_(kMostCredit) {}

AliasedSlot::~AliasedSlot() {
  if (alias_ == nullptr || !fork_guard_.in_creator()) return;
  comm::shm::forget_private_in_children(alias_);
  ::munmap(alias_, page_bytes_);
}

void AliasedSlot::open() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kClosed && credit_ >= 0) state_ = State::kOpen;
}

at::DataPtr AliasedSlot::lend() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ != State::kOpen || !fork_guard_.in_creator()) return {};
  at::DataPtr data =
      lend_memory(alias_ + offset_, [slot = shared_from_this()] { slot->take_back(); });
  state_ = State::kLent;
  return data;
}

bool AliasedSlot::holds(const at::Tensor& tensor) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return state_ == State::kLent && tensor.layout() == at::kStrided &&
         tensor.const_data_ptr() == alias_ + offset_ &&
         owns_lent_memory(tensor.storage().data_ptr());
}

void AliasedSlot::evict() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kOpen) state_ = State::kClosed;
  if (state_ != State::kLent || !fork_guard_.in_creator()) return;
  void* const own =
      ::mmap(nullptr, page_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (own == MAP_FAILED) throw std::bad_alloc();
  std::memcpy(static_cast<std::byte*>(own) + offset_, alias_ + offset_, bytes_);
  comm::shm::forget_private_in_children(alias_);  // a child copies what it writes of its own pages
  if (::mremap(own, page_bytes_, page_bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, alias_) ==
      MAP_FAILED) {
    comm::shm::make_private_in_children(alias_, page_bytes_, pages_);
    ::munmap(own, page_bytes_);
    throw std::bad_alloc();
  }
  state_ = State::kEvicted;
  credit_ -= kCostOfEviction;
}

void AliasedSlot::take_back() {
  if (!fork_guard_.in_creator())
    return;  // the child's pages are copies, and its mutex may be taken
  const std::lock_guard<std::mutex> lock(mutex_);
  if (state_ == State::kLent) credit_ = std::min(credit_ + 1, kMostCredit);
  const bool is_slot =
      state_ != State::kEvicted || map_again(pages_, page_bytes_, alias_) != nullptr;
  state_ = is_slot ? State::kClosed : State::kLost;
}

}  // namespace farandole
