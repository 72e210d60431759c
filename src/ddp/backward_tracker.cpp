// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_tracker.h"

#include <ATen/SequenceNumber.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <utility>

#include "ddp/gradient_hook.h"
#include "farandole/comm/events.h"
#include "farandole/error.h"

namespace farandole {

BackwardTracker::BackwardTracker(std::function<void(bool)> on_output)
    : on_output_(std::move(on_output)) {}

void BackwardTracker::before_forward() {
  if (!awaits_outputs_) first_node_ = at::sequence_number::peek();
}

void BackwardTracker::after_forward(const std::vector<at::Tensor>& outputs, bool synchronize) {
  if (is_running()) return;  // within backward, which has its end already
  end_node_ = at::sequence_number::peek();
  if (synchronize) ++forward_;
  awaits_parameters_ = true;
  begins_at_parameter_ = synchronize;
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    watch(output, synchronize);
    // A view that is changed in place afterwards gets another node than the one hooked here.
    if (output.is_view()) watch(at::Tensor(output._base()), synchronize);
  }
  awaits_outputs_.reset();
  if (!begins_at_parameter_) awaits_outputs_ = synchronize;
}

void BackwardTracker::watch(const at::Tensor& output, bool synchronize) {
  if (!output.requires_grad() || output.is_leaf()) return;
  begins_at_parameter_.reset();
  output.register_hook([on_output = on_output_, synchronize](const at::Tensor&) {
    throwing_through_autograd([&] { on_output(synchronize); });
  });
}

void BackwardTracker::forward_failed() {
  if (is_running()) return;
  ++forward_;
  forward_failed_ = true;
}

void BackwardTracker::check_outputs_were_used() {
  if (!std::exchange(outputs_were_passed_by_, false)) return;
  awaits_outputs_.reset();
  throw InvalidArgument(
      "gradients-not-averaged", "gradients of the last backward were not averaged over the ranks.",
      "its loss did not use anything that the forward before it has computed, which starts the "
      "averaging.",
      "add the loss to one that uses the outputs of forward; or run a forward whose outputs are "
      "not "
      "used under no_grad() or no_sync().");
}

std::optional<bool> BackwardTracker::begins_at_parameter() {
  if (is_running()) return std::nullopt;
  if (!awaits_outputs_) return begins_at_parameter_;
  if (graph_has_nodes_of_forward()) return awaits_outputs_;
  outputs_were_passed_by_ = *awaits_outputs_;
  return std::nullopt;
}

/// Of the graph task that runs on this thread.
bool BackwardTracker::graph_has_nodes_of_forward() const {
  const auto* const nodes = torch::autograd::get_current_graph_task_nodes_in_graph();
  return nodes != nullptr && std::any_of(nodes->begin(), nodes->end(), [this](const auto* node) {
           return node->sequence_nr() >= first_node_ && node->sequence_nr() < end_node_;
         });
}

void BackwardTracker::begin_pass() {
  awaits_outputs_.reset();
  outputs_were_passed_by_ = false;
}

bool BackwardTracker::is_first_outside_of_passes() {
  if (!is_idle() || !last_was_synchronized_ || awaits_outputs_) return false;
  return !std::exchange(was_outside_of_passes_, true);
}

void BackwardTracker::parameter_was_reached() {
  if (std::exchange(awaits_parameters_, false)) ++passes_;
}

uint64_t BackwardTracker::begin() {
  state_ = State::kRunning;
  begin_ns_ = comm::now_ns();
  return ++backward_;
}

void BackwardTracker::last_gradient_arrived() { end_ns_ = comm::now_ns(); }

void BackwardTracker::raise_forward(uint64_t forward) { forward_ = std::max(forward_, forward); }

}  // namespace farandole
