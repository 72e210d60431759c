// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/allocation_watch.h"

#include <c10/core/CPUAllocator.h>

#include <atomic>
#include <mutex>

#include "ddp/allocation/lent_memory.h"

namespace farandole {
namespace {

thread_local std::weak_ptr<AllocationWatch>* watch_here = nullptr;

/// Asks the watch of the thread before the allocator that torch had.
class WatchedAllocator final : public at::Allocator {
 public:
  /// Before anybody sees this allocator.
  void stand_before(at::Allocator* inner) { inner_.store(inner, std::memory_order_release); }

  at::DataPtr allocate(size_t bytes) override {
    if (watch_here == nullptr) return inner()->allocate(bytes);
    const std::shared_ptr<AllocationWatch> watch = watch_here->lock();
    if (!watch) return inner()->allocate(bytes);
    if (at::DataPtr served = watch->serve(bytes)) return served;
    at::DataPtr data = inner()->allocate(bytes);
    watch->on_served(data.get(), bytes);
    return data;
  }
  /// For raw_deallocate(), which has nothing but an address. Memory that is not lent keeps the
  /// inner allocator's deleter in its DataPtr, and costs nothing here.
  at::DeleterFnPtr raw_deleter() const override {
    return inner()->raw_deleter() != nullptr ? free_raw : nullptr;
  }
  bool is_simple_data_ptr(const at::DataPtr& data) const override {
    return inner()->is_simple_data_ptr(data);
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner()->copy_data(to, from, bytes);
  }

 private:
  static void free_raw(void* data);
  at::Allocator* inner() const { return inner_.load(std::memory_order_acquire); }

  std::atomic<at::Allocator*> inner_{nullptr};
};

/// Made when the library is loaded, so that a thread that finds it in torch's unguarded pointer
/// finds it whole. Never destroyed: tensors keep it.
WatchedAllocator* const watched_allocator = new WatchedAllocator;

void WatchedAllocator::free_raw(void* data) {
  if (data != nullptr && !give_back_lent(data)) watched_allocator->inner()->raw_deleter()(data);
}

/// The watch of a thread; none once the thread's variables are gone.
struct OwnWatch {
  std::weak_ptr<AllocationWatch> watch;
  ~OwnWatch() { watch_here = nullptr; }
};

}  // namespace

AllocationWatch::~AllocationWatch() = default;

void enable_allocation_watch() {
  static std::once_flag once;
  std::call_once(once, [] {
    watched_allocator->stand_before(c10::GetCPUAllocator());
    c10::SetCPUAllocator(watched_allocator);
  });
}

void watch_allocations(const std::shared_ptr<AllocationWatch>& watch) {
  thread_local OwnWatch own;
  own.watch = watch;
  watch_here = watch ? &own.watch : nullptr;
}

}  // namespace farandole
