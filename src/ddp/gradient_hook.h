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

// The two sides of autograd's node that adds a gradient to p.grad. A node's hooks cannot all be
// taken away again; one whose owner is gone does nothing.

/// Stands before the node. It gets the gradient when all uses of the parameter in one graph task
/// have been added up, after the tensor's own hooks, and returns what the node still has to add:
/// nothing, if the gradient is in its bucket.
class GradientHook final : public torch::autograd::FunctionPreHook {
 public:
  using Take = std::function<at::Tensor(const at::Tensor& gradient)>;

  /// `owner` lives as long as `take` may be called.
  GradientHook(std::weak_ptr<void> owner, Take take);
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& grads) override;
  void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override;

 private:
  std::weak_ptr<void> owner_;
  Take take_;
};

/// Stands behind the node: p.grad is as it will be, and what the program hung to it with
/// register_post_accumulate_grad_hook() has run.
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

/// Runs `callback` at the end of the graph task that runs on this thread, on its thread; what it
/// throws leaves backward. If the task ends with an exception, runs `abandoned` instead, which must
/// not throw. Must be called within a backward.
void at_end_of_backward(std::function<void()> callback, std::function<void()> abandoned);

/// Runs what belongs to a hook; what it throws keeps its type on the way through autograd.
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

/// Whether that task may run `node`: autograd::grad() and backward(inputs) run those alone that
/// they need.
bool current_graph_task_runs(torch::autograd::Node* node);

}  // namespace farandole
