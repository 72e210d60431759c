// SPDX-License-Identifier: Apache-2.0
#include "ddp/slot_tensor.h"

#include <ATen/MapAllocator.h>
#include <ATen/ops/clone.h>
#include <ATen/ops/from_blob.h>

#include <atomic>
#include <string>
#include <utility>

#include "ddp/allocation/sole_holder.h"
#include "log.h"

namespace farandole {
namespace {

std::atomic<size_t> mapped{0};

void tell_of_most_mapped() {
  static std::atomic<bool> is_told{false};
  if (is_told.exchange(true)) return;
  log(LogLevel::kWarning,
      "the program keeps memory of gradients or parameters, and " +
          std::to_string(SlotTensor::kMostMapped) +
          " of them have addresses of their own already. Further tensors that it keeps have their "
          "values, but NumPy arrays and DLPack capsules show what later steps write: copy them.");
}

}  // namespace

/// What keeps the memory of a slot alive; held by the SlotTensor and by the storage of its tensor.
struct SlotTensor::Memory {
  at::Tensor slot;
  std::shared_ptr<AliasedSlot> alias;  ///< null: the slot's own addresses
  at::DataPtr lent;                    ///< by the alias
  bool is_shared = false;              ///< has or should have an alias

  ~Memory() {
    if (alias) --mapped;
  }
};

SlotTensor::SlotTensor(const at::Tensor& slot, std::shared_ptr<void> owner)
    : memory_(std::make_shared<Memory>()) {
  memory_->slot = slot;
  void* data = slot.mutable_data_ptr();
  memory_->is_shared = owner != nullptr;
  if (owner && mapped < kMostMapped) {
    memory_->alias = AliasedSlot::of(data, slot.nbytes(), std::move(owner), /*alignment=*/1);
  }
  if (memory_->alias) {
    ++mapped;
    memory_->alias->open();
    memory_->lent = memory_->alias->lend();
    data = memory_->lent.get();
  }
  tensor_ = at::for_blob(data, slot.sizes())
                .strides(slot.strides())
                .context(new std::shared_ptr<Memory>(memory_), &SlotTensor::forget)
                .options(slot.options())
                .target_device(slot.device())
                .make_tensor();
  address_ = tensor_.const_data_ptr();
}

void SlotTensor::forget(void* context) { delete static_cast<std::shared_ptr<Memory>*>(context); }

/// Null if it is no memory of a slot.
std::shared_ptr<SlotTensor::Memory>* SlotTensor::memory_of(const at::DataPtr& data) {
  if (data.get_deleter() != &SlotTensor::forget) return nullptr;
  return static_cast<std::shared_ptr<Memory>*>(data.get_context());
}

bool SlotTensor::is_held() const { return is_in_place() && !has_sole_holder(tensor_); }

void SlotTensor::release() {
  if (memory_->alias) return memory_->alias->evict();
  if (memory_->is_shared) tell_of_most_mapped();
  const at::Tensor kept = tensor_.clone();
  c10::StorageImpl* const storage = tensor_.storage().unsafeGetStorageImpl();
  // The memory that it leaves stays mapped for pointers into it.
  auto* const both =
      new std::pair<at::Tensor, at::DataPtr>(kept, storage->set_data_ptr(at::DataPtr()));
  storage->set_data_ptr_noswap(
      {kept.mutable_data_ptr(), both,
       [](void* context) { delete static_cast<std::pair<at::Tensor, at::DataPtr>*>(context); },
       kept.device()});
}

bool SlotTensor::is_seen_by_others(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.numel() == 0) return false;
  const at::DataPtr& data = tensor.storage().data_ptr();
  if (at::MapAllocator::fromDataPtr(data) != nullptr ||
      at::RefcountedMapAllocator::fromDataPtr(data) != nullptr) {
    return true;
  }
  const auto* const memory = memory_of(data);
  const bool has_slot_tensor = memory != nullptr && memory->use_count() > 1;
  return tensor.storage().use_count() > (has_slot_tensor ? 2 : 1);
}

}  // namespace farandole
