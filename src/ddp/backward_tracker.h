// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace farandole {

/// Finds out when a backward begins, whether it is synchronized, and whether an exception left it.
///
/// A backward is synchronized if its forward was. It begins when one of the outputs of that forward
/// gets a gradient. Its loss may also come from other tensors of the forward, such as an attribute
/// of the module. Then it begins when a parameter gets a gradient, if the graph has nodes that were
/// made during the forward: the backward of a regularizer, which has none, stays local.
///
/// Threads: one call at a time.
class BackwardTracker {
 public:
  /// `on_output`: called in a backward, before an output of a forward passes its gradient on, with
  /// whether that forward was synchronized.
  explicit BackwardTracker(std::function<void(bool synchronize)> on_output);

  bool is_running() const { return state_ == State::kRunning; }
  /// An exception has left a synchronized backward; the other ranks do not know yet.
  bool is_abandoned() const { return state_ == State::kAbandoned; }
  bool is_idle() const { return state_ == State::kIdle; }

  void before_forward();
  void after_forward(const std::vector<at::Tensor>& outputs, bool synchronize);
  void forward_failed();
  /// Throws InvalidArgument if a backward has reached parameters and nothing of the forward before
  /// it, and none has reached that since: gradients stayed local.
  void check_outputs_were_used();
  /// A gradient that reaches a parameter outside of a synchronized backward begins a pass, of the
  /// last forward.
  void begin_at_parameter(bool synchronize) { begins_at_parameter_ = synchronize; }
  /// Whether the gradient that has reached a parameter begins a pass, and whether the pass is
  /// synchronized; nullopt: it does not.
  std::optional<bool> begins_at_parameter();
  /// A gradient has reached a parameter.
  void parameter_was_reached();
  /// Forward passes so far whose backward has reached a parameter.
  uint64_t passes() const { return passes_; }
  /// A pass begins.
  void begin_pass();
  /// It adds to gradients.
  void add_pass(bool synchronize) {
    has_local_passes_ = !synchronize;
    last_was_synchronized_ = synchronize;
  }
  /// True once: the gradient that has reached a parameter is in no pass, so no forward led to it.
  bool is_first_outside_of_passes();
  /// Whether passes that were not synchronized have added to gradients since the last one that was.
  bool has_local_passes() const { return has_local_passes_; }
  void forget_local_passes() { has_local_passes_ = false; }

  /// A synchronized backward begins. Returns its number, counted from 1.
  uint64_t begin();
  /// Whether this is the current synchronized backward.
  bool is_in(uint64_t backward) const { return is_running() && backward_ == backward; }
  /// The last gradient of this rank has arrived.
  void last_gradient_arrived();
  /// The backward has produced averages.
  void succeed() { forward_failed_ = false; }
  /// The backward is over, for all ranks.
  void end() { state_ = State::kIdle; }
  /// An exception has left the backward.
  void abandon() { state_ = State::kAbandoned; }

  /// Synchronized backward passes so far.
  uint64_t backward() const { return backward_; }
  /// Synchronized forward passes so far.
  uint64_t forward() const { return forward_; }
  /// Another rank has run as many.
  void raise_forward(uint64_t forward);
  /// Whether an exception has left a forward since the last successful backward.
  bool has_forward_failed() const { return forward_failed_; }
  /// Of the current or last backward, in comm::now_ns().
  uint64_t begin_ns() const { return begin_ns_; }
  uint64_t end_ns() const { return end_ns_; }

 private:
  enum class State { kIdle, kRunning, kAbandoned };

  void watch(const at::Tensor& output, bool synchronize);
  bool graph_has_nodes_of_forward() const;

  const std::function<void(bool)> on_output_;
  State state_ = State::kIdle;
  /// Whether the next backward is synchronized, if it may come to parameters and to no output of
  /// the last forward.
  std::optional<bool> begins_at_parameter_;
  /// Whether the last forward was synchronized; nullopt: a backward has come to it already.
  std::optional<bool> awaits_outputs_;
  bool outputs_were_passed_by_ = false;  ///< gradients came to parameters meanwhile
  /// Sequence numbers of autograd's nodes: the first of the forward, and the first after it.
  uint64_t first_node_ = 0;
  uint64_t end_node_ = 0;
  bool awaits_parameters_ = false;  ///< no gradient has come to a parameter since the last forward
  uint64_t passes_ = 0;
  bool has_local_passes_ = false;
  bool last_was_synchronized_ = true;  ///< the last pass; a local one may still go on
  bool was_outside_of_passes_ = false;
  bool forward_failed_ = false;
  uint64_t forward_ = 0;
  uint64_t backward_ = 0;
  uint64_t begin_ns_ = 0;
  uint64_t end_ns_ = 0;
};

}  // namespace farandole
