// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation_watch.h"

#include <c10/core/CPUAllocator.h>

namespace farandole {
namespace {

thread_local std::weak_ptr<AllocationWatch>* watch_here = nullptr;

/// Asks the watch of the thread before the allocator that torch had.
class WatchedAllocator final : public at::Allocator {
 public:
  explicit WatchedAllocator(at::Allocator* inner) : inner_(inner) {}

  at::DataPtr allocate(size_t bytes) override {
    if (watch_here == nullptr) return inner_->allocate(bytes);
    const std::shared_ptr<AllocationWatch> watch = watch_here->lock();
    if (!watch) return inner_->allocate(bytes);
    if (at::DataPtr served = watch->serve(bytes)) return served;
    at::DataPtr data = inner_->allocate(bytes);
    watch->on_served(data.get(), bytes);
    return data;
  }
  bool is_simple_data_ptr(const at::DataPtr& data) const override {
    return inner_->is_simple_data_ptr(data);
  }
  at::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    inner_->copy_data(to, from, bytes);
  }

 private:
  at::Allocator* const inner_;
};

/// When the library is loaded: torch reads the pointer without a lock, on threads that allocate
/// while ranks begin their first backward. Never destroyed: tensors keep it.
[[maybe_unused]] const bool is_installed = [] {
  c10::SetCPUAllocator(new WatchedAllocator(c10::GetCPUAllocator()));
  return true;
}();

}  // namespace

AllocationWatch::~AllocationWatch() = default;

void watch_allocations(const std::shared_ptr<AllocationWatch>& watch) {
  thread_local std::weak_ptr<AllocationWatch> own;
  own = watch;
  watch_here = watch ? &own : nullptr;
}

}  // namespace farandole
