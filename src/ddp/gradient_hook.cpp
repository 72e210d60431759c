// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_hook.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/graph_task.h>

#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

/// Knows whether the graph task that owns it has ended without an exception.
struct EndOfBackward {
  std::function<void()> callback;
  std::function<void()> abandoned;

  ~EndOfBackward() {
    if (abandoned) abandoned();
  }
  void run() {
    abandoned = nullptr;
    throwing_through_autograd(callback);
  }
};

[[noreturn]] void refuse_compiled_autograd() {
  throw NotSupported(
      "compiled-autograd", "DistributedDataParallel cannot be traced by compiled autograd.",
      "it gets gradients from autograd hooks and puts them into buckets at run time.",
      "leave torch._dynamo.config.compiled_autograd off; torch.compile() of the module is "
      "supported.");
}

}  // namespace

GradientHook::GradientHook(std::weak_ptr<void> owner, Take take)
    : owner_(std::move(owner)), take_(std::move(take)) {}

torch::autograd::variable_list GradientHook::operator()(
    const torch::autograd::variable_list& grads) {
  const std::shared_ptr<void> owner = owner_.lock();
  if (!owner || grads.empty()) return grads;
  return {throwing_through_autograd([&] { return take_(grads[0]); })};
}

void GradientHook::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const {
  refuse_compiled_autograd();
}

AccumulatedHook::AccumulatedHook(std::weak_ptr<void> owner, std::function<void()> count)
    : owner_(std::move(owner)), count_(std::move(count)) {}

torch::autograd::variable_list AccumulatedHook::operator()(
    const torch::autograd::variable_list& outputs,
    const torch::autograd::variable_list& /*inputs*/) {
  if (const std::shared_ptr<void> owner = owner_.lock()) throwing_through_autograd(count_);
  return outputs;
}

void AccumulatedHook::compiled_args(torch::dynamo::autograd::CompiledNodeArgs& /*args*/) const {
  refuse_compiled_autograd();
}

void at_end_of_backward(std::function<void()> callback, std::function<void()> abandoned) {
  // Shared, because std::function must be copyable. It is destroyed with the graph task.
  auto end = std::make_shared<EndOfBackward>();
  end->callback = std::move(callback);
  end->abandoned = std::move(abandoned);
  torch::autograd::Engine::get_default_engine().queue_callback([end] { end->run(); });
}

int current_graph_task() { return torch::autograd::get_current_graph_task_id(); }

bool current_graph_task_runs(torch::autograd::Node* node) {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (chosen == nullptr || chosen->empty()) return true;
  const auto found = chosen->find(node);
  return found != chosen->end() && found->second.needed_;
}

}  // namespace farandole
