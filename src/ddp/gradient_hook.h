// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <exception>
#include <functional>
#include <memory>

#include "farandole/process_group/autograd_error.h"

namespace farandole {

// Hooks in front of and behind the autograd node that adds a gradient to p.grad. Not all hooks of a
// node can be removed; a hook whose owner is gone does nothing.

/// Runs before the node, after the tensor's own hooks. It gets the sum of the gradients of all uses
/// of the parameter in one graph task, and returns what the node still has to add: nothing if the
/// gradient is in its bucket.
class GradientHook final : public torch::autograd::FunctionPreHook {
 public:
  using Take = std::function<at::Tensor(const at::Tensor& gradient)>;

  /// `owner` lives as long as `take` may be called.
  GradientHook(std::weak_ptr<void> owner, Take take);
  bool is_alive() const { return !owner_.expired(); }
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override;
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;

 private:
  std::weak_ptr<void> owner_;
  Take take_;
};

/// Runs after the node and after the program's post-accumulate hooks: p.grad is final.
class AccumulatedHook final : public torch::autograd::FunctionPostHook {
 public:
  AccumulatedHook(std::weak_ptr<void> owner, std::function<void()> count);
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list& inputs) override;
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;

 private:
  std::weak_ptr<void> owner_;
  std::function<void()> count_;
};

/// Runs `callback` at the end of the graph task that runs on this thread, on the same thread; its
/// exceptions leave backward. If the task ends with an exception, runs `abandoned` instead, which
/// must not throw. Call it within a backward.
void at_end_of_backward(std::function<void()> callback, std::function<void()> abandoned);

/// Runs the body of a hook so that its exceptions keep their type on the way through autograd.
template <class Function>
auto throwing_through_autograd(const Function& function) {
  try {
    return function();
  } catch (...) {
    std::rethrow_exception(as_autograd_error(std::current_exception()));
  }
}

/// The graph task that runs on this thread; -1 outside of backward.
int current_graph_task();

/// Whether this task may run `node`: autograd::grad() and backward(inputs) run only the nodes that
/// they need.
bool current_graph_task_runs(torch::autograd::Node* node);

}  // namespace farandole
