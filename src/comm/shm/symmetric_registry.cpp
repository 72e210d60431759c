// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/symmetric_registry.h"

#include <utility>

#include "comm/fork_safe_mutex.h"

namespace farandole::comm::shm {

class SymmetricRegistry::Allocation final : public SymmetricMemory,
                                            public std::enable_shared_from_this<Allocation> {
 public:
  Allocation(std::shared_ptr<SymmetricRegistry> registry, uint64_t number,
             std::shared_ptr<Mapping> mapping, size_t bytes, int rank, int world_size)
      : registry_(std::move(registry)),
        number_(number),
        mapping_(std::move(mapping)),
        bytes_(bytes),
        part_bytes_(mapping_->bytes() / static_cast<size_t>(world_size)),
        rank_(rank) {}
  ~Allocation() override { registry_->remove(number_); }

  uint64_t number() const override { return number_; }
  size_t bytes() const override { return bytes_; }
  void* local() const override { return peer(rank_); }
  void* peer(int rank) const override {
    return mapping_->data() + part_bytes_ * static_cast<size_t>(rank);
  }

 private:
  std::shared_ptr<SymmetricRegistry> registry_;
  uint64_t number_;
  std::shared_ptr<Mapping> mapping_;
  size_t bytes_;
  size_t part_bytes_;
  int rank_;
};

/// One mutex for all groups of the process; it is held briefly.
std::mutex& SymmetricRegistry::mutex() { return fork_safe_mutex<SymmetricRegistry>(); }

std::shared_ptr<SymmetricMemory> SymmetricRegistry::add(std::shared_ptr<Mapping> mapping,
                                                        size_t bytes, int rank, int world_size) {
  const uint64_t number = next_number_++;
  auto allocation = std::make_shared<Allocation>(shared_from_this(), number, std::move(mapping),
                                                 bytes, rank, world_size);
  const std::lock_guard<std::mutex> lock(mutex());
  live_[number] = allocation.get();
  return allocation;
}

/// The live allocation whose part of this rank holds the bytes, or null. Needs mutex().
SymmetricRegistry::Allocation* SymmetricRegistry::holder_of(const void* data, size_t bytes) const {
  const auto address = reinterpret_cast<uintptr_t>(data);
  for (const auto& [number, allocation] : live_) {
    const auto begin = reinterpret_cast<uintptr_t>(allocation->local());
    if (address >= begin && bytes <= allocation->bytes() &&
        address - begin <= allocation->bytes() - bytes) {
      return allocation;
    }
  }
  return nullptr;
}

Place SymmetricRegistry::place_of(const void* data, size_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex());
  const Allocation* holder = holder_of(data, bytes);
  if (holder == nullptr || holder->number() >= Place::kMostAllocations) return Place();
  return Place(holder->number(), static_cast<uint64_t>(static_cast<const std::byte*>(data) -
                                                       static_cast<std::byte*>(holder->local())));
}

std::shared_ptr<SymmetricMemory> SymmetricRegistry::find(const void* data, size_t bytes) const {
  const std::lock_guard<std::mutex> lock(mutex());
  Allocation* holder = holder_of(data, bytes);
  if (holder == nullptr) return nullptr;
  return holder->weak_from_this().lock();  // null if another thread is releasing it
}

std::byte* SymmetricRegistry::address_of(Place place, int rank) const {
  const std::lock_guard<std::mutex> lock(mutex());
  return static_cast<std::byte*>(live_.at(place.allocation())->peer(rank)) + place.offset();
}

void SymmetricRegistry::remove(uint64_t number) {
  const std::lock_guard<std::mutex> lock(mutex());
  live_.erase(number);
}

}  // namespace farandole::comm::shm
