// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <vector>

#include "ddp/allocation/aliased_slot.h"
#include "ddp/slot_tensor.h"

namespace farandole {

/// Pointer to an autograd node: a shared_ptr, or an intrusive_ptr since torch 2.15.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

/// One parameter, and how its gradient moves from autograd into its slot in a bucket: in one pass
/// over memory, with p.grad pointing to the slot.
///
/// Previous contents of p.grad are never lost: a gradient outside of its slot (set by the program,
/// moved by share_memory() or made by autograd itself) is moved there first. If it has to stay
/// outside (stays_outside()), its values are copied into the slot, and publish() copies the
/// averages back. A tensor of the slot that the program still holds when p.grad is no longer the
/// slot gets other memory before the slot is written to. Threads: one at a time.
class ParameterGradient {
 public:
  ParameterGradient(at::Tensor parameter, bool sparse);

  const at::Tensor& parameter() const { return parameter_; }
  bool is_sparse() const { return sparse_; }
  /// Whether it gets gradients, as of the last renew(); otherwise it is frozen.
  bool is_active() const { return active_; }
  /// Autograd's node that adds gradients to p.grad; null if there has been none.
  torch::autograd::Node* accumulator() const { return accumulator_.get(); }
  /// Whether the parameter has changed its dtype, device or requires_grad since the last renew(),
  /// even temporarily: autograd then has another node for it, or none.
  bool has_changed() const;
  /// Reads the parameter's properties again and forgets the slot. Returns the autograd node that
  /// adds gradients to p.grad if it is a new one.
  NodePointer renew();

  bool has_slot() const { return make_slot_ != nullptr; }
  /// Assigns a slot in a bucket; p.grad stays where it is until move_into_slot() or take().
  /// `make_slot` returns a tensor of the slot, always of the same memory. `aliased_slot`: the same
  /// memory, if gradients may be computed there; otherwise null. `slot`: what slot_tensor()
  /// returned when the parameter had this slot before; otherwise empty.
  void assign_slot(std::function<SlotTensor()> make_slot, std::shared_ptr<AliasedSlot> aliased_slot,
                   SlotTensor slot = {});
  /// What p.grad is or was in this slot; empty without a slot.
  const SlotTensor& slot_tensor() const { return slot_; }
  /// Whether autograd is to add the next gradient to p.grad, which stays where it is: it gets a
  /// graph (create_graph=True); or other tensors see its memory, as a flat vector of all gradients
  /// does; or another owner of slots has hooked the parameter too.
  bool stays_outside() const;
  /// Whether the hook of another living owner takes gradients of the parameter.
  bool is_shared() const;
  /// Lends the slot to the operation that computes the next gradient, if there is no gradient yet.
  void open_slot();
  /// Releases the slot's tensor if it is not p.grad and the program still holds it; see SlotTensor.
  void release_slot();
  /// Ends lending: from now on only the bucket uses the slot.
  void close_slot();
  /// Whether `gradient` was computed in the slot.
  bool is_born(const at::Tensor& gradient) const;
  /// Whether `gradient` could be computed in the slot: it is the first, and has the same strides.
  bool could_be_born(const at::Tensor& gradient) const;

  /// p.grad = scale * `gradient`, which was computed in its slot. If something else holds it (a
  /// hook, another branch of the graph), the holder keeps it unchanged in other memory.
  void keep_born(const at::Tensor& gradient, double scale);
  /// Whether nobody misses `gradient` in p.grad before its bucket is launched, and it is copied
  /// there then: it is the first, on an accelerator, and no hook but ours runs behind the node that
  /// adds it to p.grad.
  bool may_arrive_later(const at::Tensor& gradient) const;
  /// p.grad += scale * gradient, in its slot.
  void take(const at::Tensor& gradient, double scale);
  /// Moves p.grad into its slot if it is elsewhere, or copies it there if it has to stay. False if
  /// there is no p.grad.
  bool move_into_slot();
  /// Fills the slot with zeros; p.grad is unchanged.
  void clear_slot();
  /// p.grad = the slot.
  void expose_slot();
  /// The slot has the average: so has p.grad, which becomes the slot unless it has to stay outside.
  /// A p.grad with a graph becomes a tensor of the same graph.
  void publish();
  /// The same for a p.grad that stayed outside in this backward; others are left alone.
  void publish_outside();
  /// The backward is over.
  void end_backward() { is_outside_ = false; }
  /// This library, or autograd, has written p.grad. Nothing is noted on the CPU.
  void note_written();
  /// Moves p.grad elsewhere if it is the slot, so that stores of other ranks do not change it. On
  /// accelerators they may have: there it becomes zeros if the program has written it since
  /// note_written(), by autograd's version counter, since what a program writes then are zeros.
  void leave_slot();
  /// Whether p.grad is the slot.
  bool is_in_slot() const { return is_slot(parameter_.grad()); }
  /// Remembers p.grad as the result of backward.
  void note_result();
  /// Whether the program has changed p.grad since, by autograd's version counter.
  bool is_other_result() const;
  /// Remembers whether p.grad in its current state is finite.
  void note_finite(bool is_finite);
  /// Whether it was finite, and the program has not changed it since, by autograd's version
  /// counter.
  bool is_known_finite() const;
  /// Remembers the parameter as it is when its gradient arrives.
  void note_parameter() { parameter_version_ = parameter_._version(); }
  /// Whether the program has written the parameter since, by autograd's version counter. Forgets
  /// what note_parameter() has remembered.
  bool was_parameter_written();
  /// A copy of p.grad, undefined if there is none.
  at::Tensor saved() const;
  /// Puts a copy back.
  void restore(const at::Tensor& saved);

 private:
  bool is_slot(const at::Tensor& tensor) const;
  bool is_laid_out_as_slot(const at::Tensor& tensor) const;

  bool is_held_outside() const;

  at::Tensor parameter_;
  bool sparse_;
  NodePointer accumulator_;  ///< kept alive: it carries our hook
  bool active_ = false;
  at::ScalarType dtype_;
  at::Device device_;
  /// The tensor of the slot. The program may point it to other memory through p.grad
  /// (share_memory(), p.grad.data = ...); then a new one replaces it.
  const at::Tensor& slot();
  /// The same, for writing.
  const at::Tensor& cleared_slot();

  std::function<SlotTensor()> make_slot_;
  SlotTensor slot_;
  std::vector<int64_t> strides_;  ///< of the slot
  std::shared_ptr<AliasedSlot> aliased_slot_;
  int64_t version_ = 0;             ///< of p.grad in note_result()
  int64_t written_version_ = 0;     ///< of p.grad in note_written()
  int64_t finite_version_ = -1;     ///< of p.grad in note_finite(); -1: it was not finite
  int64_t parameter_version_ = -1;  ///< in note_parameter(); -1: none
  bool is_outside_ = false;         ///< p.grad was copied into the slot, and stayed outside
};

}  // namespace farandole
