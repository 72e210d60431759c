// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

#include "ddp/allocation/aliased_slot.h"
#include "farandole/export.h"

namespace farandole {

/// A tensor of memory of this library (the slot of a gradient, or of a parameter) for the program,
/// which may keep it, or memory of it (a view, an array of numpy, DLPack), for as long as it likes.
///
/// Copies are the same tensor. Threads: one at a time.
class FARANDOLE_API SlotTensor {
 public:
  /// Tensors of a process with a mapping of their own; Linux allows a process 65,530 mappings
  /// (vm.max_map_count).
  static constexpr size_t kMostMapped = 16384;

  /// No slot.
  SlotTensor() = default;
  /// `slot`: a tensor of the slot's own memory. `owner`: keeps the memory alive if ranks share it;
  /// otherwise null. Shared memory is mapped once more for the tensor, so that release() can leave
  /// those addresses to the program, unless kMostMapped are.
  SlotTensor(const at::Tensor& slot, std::shared_ptr<void> owner);

  const at::Tensor& tensor() const { return tensor_; }
  /// Of the first element; null: no slot, or an empty one.
  const void* address() const { return address_; }
  /// Whether the tensor is in the slot. The program may point it to other memory
  /// (share_memory(), p.grad.data = ...).
  bool is_in_place() const { return tensor_.defined() && tensor_.const_data_ptr() == address_; }
  /// Whether something else holds the tensor or its memory, p.grad included.
  bool is_held() const;
  /// Leaves the tensor to whoever holds it, with its values in other memory: at the same addresses
  /// if the slot was mapped once more; otherwise only tensors see it, and pointers (of numpy and
  /// DLPack) see what the slot gets later. Make a new one for the slot.
  void release();

  /// Whether tensors other than `tensor`, or pointers, lead to its memory, or other processes do
  /// (share_memory()). The SlotTensor that gave it the memory does not count.
  static bool is_seen_by_others(const at::Tensor& tensor);

 private:
  struct Memory;

  static std::shared_ptr<Memory>* memory_of(const at::DataPtr& data);
  static void forget(void* context);

  at::Tensor tensor_;
  std::shared_ptr<Memory> memory_;
  const void* address_ = nullptr;
};

}  // namespace farandole
