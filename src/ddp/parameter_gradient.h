// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <memory>
#include <vector>

#include "ddp/birthplace.h"

namespace farandole {

/// What holds a node of autograd: a shared_ptr, and since torch 2.15 an intrusive_ptr.
using NodePointer = decltype(torch::autograd::impl::grad_accumulator(at::Tensor()));

/// One parameter and the way of its gradient: out of autograd's hands into its place in a bucket,
/// in one pass over memory, with p.grad pointing there.
///
/// What p.grad held before is never lost: a gradient that is not in its place (set by hand, moved
/// by share_memory() or made by autograd itself) is moved there first. Threads: one at a time.
class ParameterGradient {
 public:
  ParameterGradient(at::Tensor parameter, bool sparse);

  const at::Tensor& parameter() const { return parameter_; }
  bool is_sparse() const { return sparse_; }
  /// Whether it gets gradients: if not it is frozen, as of the last renew().
  bool is_active() const { return active_; }
  /// Autograd's node that adds gradients to p.grad; null if there has been none.
  torch::autograd::Node* accumulator() const { return accumulator_.get(); }
  /// Whether the parameter changed its dtype, device or requires_grad since the last renew(), if
  /// only for a time: then autograd has another node for it, or none.
  bool has_changed() const;
  /// Looks at the parameter anew and forgets the place. Returns the node of autograd that adds
  /// gradients to p.grad if it is another one than before.
  NodePointer renew();

  bool has_place() const { return make_place_ != nullptr; }
  /// Gives the gradient a place in a bucket; p.grad stays where it is until adopt() or take().
  /// `make_place` makes a tensor of it, always of the same memory. `birthplace`: the same memory,
  /// if gradients may be born there; else null.
  void settle(std::function<at::Tensor()> make_place, std::shared_ptr<Birthplace> birthplace);
  /// Lends the place to whoever computes the next gradient, if there is none yet.
  void open_place();
  /// Nobody but the bucket has the place from now on.
  void close_place();
  /// Whether `gradient` was born in the place, as it is to be.
  bool is_born(const at::Tensor& gradient) const;
  /// Whether `gradient` could be born in the place: it comes first, and lies in the same order.
  bool could_be_born(const at::Tensor& gradient) const;

  /// p.grad = scale * `gradient`, which was born in its place. Who else holds it (a hook, another
  /// branch of the graph) keeps it as it is: then the gradient leaves the place to its values.
  void keep_born(const at::Tensor& gradient, double scale);
  /// p.grad += scale * gradient, in its place.
  void take(const at::Tensor& gradient, double scale);
  /// Moves p.grad into its place if it is elsewhere. False if there is none.
  bool adopt();
  /// Fills the place with zeros; p.grad stays as it is.
  void clear_place();
  /// p.grad = the place.
  void expose();
  /// Puts p.grad elsewhere if it is the place. What peers store there is none of it any more.
  void leave_place();
  /// Whether p.grad is the place.
  bool is_home() const { return is_place(parameter_.grad()); }
  /// Takes p.grad for what backward has left.
  void note_result();
  /// Whether the program has changed p.grad since, as autograd counts changes.
  bool is_other_result() const;
  /// What was seen of p.grad as it is.
  void note_finite(bool is_finite);
  /// Whether it was finite, and the program has not changed it since, as autograd counts changes.
  bool is_known_finite() const;
  /// A copy of p.grad, undefined if there is none.
  at::Tensor saved() const;
  /// Puts a copy back.
  void restore(const at::Tensor& saved);

 private:
  bool is_place(const at::Tensor& tensor) const;
  bool lies_as_place(const at::Tensor& tensor) const;

  at::Tensor parameter_;
  bool sparse_;
  NodePointer accumulator_;  ///< kept alive: it carries our hook
  bool active_ = false;
  at::ScalarType dtype_;
  at::Device device_;
  /// The tensor of the place. A program that reaches it as p.grad may point it elsewhere
  /// (share_memory(), p.grad.data = ...); then a new one takes its part.
  const at::Tensor& place();
  /// The same, to be written to.
  const at::Tensor& cleared_place();

  std::function<at::Tensor()> make_place_;
  at::Tensor place_;
  std::vector<int64_t> strides_;  ///< of the place
  std::shared_ptr<Birthplace> birthplace_;
  int64_t version_ = 0;            ///< of p.grad in note_result()
  int64_t finite_version_ = -1;    ///< of p.grad in note_finite(); -1: it was not finite
  const void* address_ = nullptr;  ///< of the place, as the ranks have agreed; null if it is empty
};

}  // namespace farandole
