// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_tracker.h"

#include <algorithm>
#include <utility>

#include "ddp/gradient_hook.h"
#include "farandole/comm/events.h"
#include "farandole/error.h"

namespace farandole {

BackwardTracker::BackwardTracker(std::function<void(bool)> on_output)
    : on_output_(std::move(on_output)) {}

void BackwardTracker::after_forward(const std::vector<at::Tensor>& outputs, bool synchronize) {
  if (is_running()) return;  // within backward, which has its end already
  if (synchronize) ++forward_;
  begins_at_parameter_ = synchronize;
  for (const at::Tensor& output : outputs) {
    if (!output.defined()) continue;
    watch(output, synchronize);
    // A view that is changed in place afterwards gets another node than the one hooked here.
    if (output.is_view()) watch(at::Tensor(output._base()), synchronize);
  }
  awaits_outputs_ = synchronize && !begins_at_parameter_;
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
  awaits_outputs_ = false;
  if (!std::exchange(outputs_were_passed_by_, false)) return;
  throw InvalidArgument(
      "gradients-not-averaged", "gradients of the last backward were not averaged over the ranks.",
      "its loss did not use any output of the forward before it, and those outputs start the "
      "averaging.",
      "return the loss, or the tensors that it is computed from, from forward; or run a forward "
      "whose outputs are not used under no_grad() or no_sync().");
}

std::optional<bool> BackwardTracker::begins_at_parameter() const {
  return is_running() ? std::nullopt : begins_at_parameter_;
}

void BackwardTracker::begin_pass() {
  awaits_outputs_ = false;
  outputs_were_passed_by_ = false;
}

uint64_t BackwardTracker::begin() {
  state_ = State::kRunning;
  begin_ns_ = comm::now_ns();
  return ++backward_;
}

void BackwardTracker::last_gradient_arrived() { end_ns_ = comm::now_ns(); }

void BackwardTracker::raise_forward(uint64_t forward) { forward_ = std::max(forward_, forward); }

}  // namespace farandole
