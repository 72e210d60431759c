// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <mutex>
#include <vector>

#include "ddp/allocation/aliased_slot.h"
#include "ddp/allocation/allocation_predictor.h"
#include "ddp/parameter_gradient.h"
#include "farandole/export.h"

namespace farandole {

/// Keeps p.grad of parameters in memory that ranks share, for whoever reduces it there. Gradients
/// are computed in their slots where that can be predicted, as those of a Reducer, else copied
/// there when they arrive. It reduces nothing, and nothing depends on it: p.grad that is elsewhere
/// stays valid, and a p.grad that the program keeps beyond its step keeps its values.
///
/// Threads: hooks come from the thread of the backward, all else from the caller's; calls wait for
/// each other.
class FARANDOLE_API GradientHome : public std::enable_shared_from_this<GradientHome> {
 public:
  /// `parameters` on the CPU.
  static std::shared_ptr<GradientHome> make(const std::vector<at::Tensor>& parameters);

  /// The parameters from `first` on, as many as fill `memory` (flat, of their dtype, symmetric),
  /// have their slots there one after the other.
  void assign(size_t first, const at::Tensor& memory);
  /// Moves the gradients of those parameters into their slots, which become p.grad; nobody else may
  /// write there any more. Returns the memory; undefined if there is none, or if a parameter has no
  /// gradient or one that is sparse or has a graph, or has changed: then nothing is moved.
  at::Tensor gather(size_t first);
  /// What was gathered has been reduced: p.grad is the slot, whatever the program has put there
  /// meanwhile. Frozen parameters are left alone.
  void settle(size_t first);

 private:
  /// Parameters whose slots are neighbours.
  struct Room {
    size_t first;
    size_t end;
    at::Tensor memory;
  };

  explicit GradientHome(const std::vector<at::Tensor>& parameters);

  std::vector<Room>::iterator room_at(size_t first);
  at::Tensor take(size_t index, const at::Tensor& gradient);
  void begin();

  std::mutex mutex_;
  std::vector<ParameterGradient> parameters_;
  std::vector<std::shared_ptr<AliasedSlot>> lent_;  ///< by parameter; null: none
  std::shared_ptr<AllocationPredictor> predictor_;
  std::vector<Room> rooms_;
  bool is_running_ = false;  ///< within a backward
};

}  // namespace farandole
