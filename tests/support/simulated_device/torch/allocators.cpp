// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/torch/allocators.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::sim {
namespace {

c10::DeviceIndex current_index() { return static_cast<c10::DeviceIndex>(current_device()); }

class DeviceAllocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = current_index();
    void* data = sim::allocate(current_stream(device), bytes);
    return {data, data, release, c10::Device(kSim, device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return release; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    current_stream(current_index())
        .launch("copy_data", {{from, bytes, false}, {to, bytes, true}},
                [=] { std::memcpy(bytes_of(to), bytes_of(from), bytes); });
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t /*pool*/) override {}
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    record_stream(data.get(), stream_of(stream));
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    stats.allocated_bytes[0].current = static_cast<int64_t>(bytes_in_use(device));
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex /*device*/) override {}
  void resetPeakStats(c10::DeviceIndex /*device*/) override {}
};

REGISTER_ALLOCATOR(kSim, static_cast<DeviceAllocator*>(device_allocator()))

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    void* data = std::malloc(std::max<size_t>(bytes, 1));
    TORCH_CHECK(data != nullptr, "no memory is left for ", bytes, " pinned bytes");
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_[address_of(data)] = address_of(data) + bytes;
    return {data, data, free, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  bool holds(const void* data) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto above = ends_.upper_bound(address_of(data));
    return above != ends_.begin() && address_of(data) < std::prev(above)->second;
  }

 private:
  static uintptr_t address_of(const void* data) { return reinterpret_cast<uintptr_t>(data); }
  static void free(void* data);

  std::mutex mutex_;
  std::map<uintptr_t, uintptr_t> ends_;  ///< of allocations, by begin; guarded by mutex_
};

PinnedAllocator& pinned() {
  static auto* made = new PinnedAllocator;
  return *made;
}

void PinnedAllocator::free(void* data) {
  {
    const std::lock_guard<std::mutex> lock(pinned().mutex_);
    pinned().ends_.erase(address_of(data));
  }
  std::free(data);
}

}  // namespace

c10::Allocator* device_allocator() {
  static auto* made = new DeviceAllocator;
  return made;
}

c10::Allocator* pinned_allocator() { return &pinned(); }

bool is_pinned(const void* data) { return pinned().holds(data); }

void resize_storage(c10::StorageImpl& storage, size_t bytes) {
  TORCH_CHECK(storage.resizable(), "this storage cannot be resized");
  const c10::DeviceGuard guard(storage.device());
  c10::DataPtr data = device_allocator()->allocate(bytes);
  if (const size_t kept = std::min(bytes, storage.nbytes())) {
    device_allocator()->copy_data(data.get(), storage.data(), kept);
  }
  storage.set_data_ptr_noswap(std::move(data));
  storage.set_nbytes(bytes);
}

}  // namespace farandole::sim
