// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_tracker.h"

#include <algorithm>
#include <utility>

#include "ddp/gradient_hook.h"
#include "farandole/comm/events.h"

namespace farandole {

BackwardTracker::BackwardTracker(std::function<void(bool)> on_output)
    : on_output_(std::move(on_output)) {}

void BackwardTracker::after_forward(const std::vector<at::Tensor>& outputs, bool synchronize) {
  if (is_running()) return;  // within backward, which has its end already
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

std::optional<bool> BackwardTracker::begins_at_parameter() const {
  if (is_running()) return std::nullopt;
  return awaits_outputs_ ? awaits_outputs_ : begins_at_parameter_;
}

bool BackwardTracker::is_first_outside_of_passes() {
  if (!is_idle() || !last_was_synchronized_) return false;
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
