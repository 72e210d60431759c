// SPDX-License-Identifier: Apache-2.0
#include "ddp/gradient_store.h"

#include <ATen/ops/_sparse_coo_tensor_with_dims.h>
#include <ATen/ops/any.h>
#include <c10/core/GradMode.h>

#include <algorithm>

#include "ddp/gradient_hook.h"
#include "log.h"

namespace farandole {
namespace {

bool has_elements_but_zeros(const at::Tensor& gradient) {
  const c10::NoGradGuard no_grad;
  const at::Tensor values = gradient.is_sparse() ? gradient._values() : gradient;
  return values.any().item<bool>();
}

/// A gradient without rows, of the form that embeddings give theirs.
at::Tensor nothing_sparse(const at::Tensor& parameter) {
  return at::_sparse_coo_tensor_with_dims(1, parameter.dim() - 1, parameter.sizes(),
                                          parameter.options().layout(at::kSparse));
}

}  // namespace

void GradientStore::add(std::string name, at::Tensor parameter, bool sparse) {
  names_.push_back(std::move(name));
  parameters_.push_back(std::make_unique<ParameterGradient>(std::move(parameter), sparse));
  was_touched_.push_back(false);
}

std::vector<at::Tensor> GradientStore::parameters() const {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters_) tensors.push_back(parameter->parameter());
  return tensors;
}

int64_t GradientStore::bytes() const {
  int64_t bytes = 0;
  for (const auto& parameter : parameters_) {
    bytes += static_cast<int64_t>(parameter->parameter().nbytes());
  }
  return bytes;
}

bool GradientStore::has_accelerators() const {
  return !std::all_of(parameters_.begin(), parameters_.end(),
                      [](const auto& parameter) { return parameter->parameter().is_cpu(); });
}

bool GradientStore::has_changed() const {
  return std::any_of(parameters_.begin(), parameters_.end(),
                     [](const auto& parameter) { return parameter->has_changed(); });
}

std::vector<ParameterKind> GradientStore::kinds() const {
  std::vector<ParameterKind> kinds;
  for (const auto& parameter : parameters_) {
    kinds.push_back(ParameterKind::of(parameter->parameter()));
  }
  return kinds;
}

comm::Fingerprint GradientStore::active_parameters() const {
  std::string flags;
  flags.reserve(parameters_.size());
  for (const auto& parameter : parameters_) flags += parameter->is_active() ? '1' : '0';
  return comm::fingerprint_of(flags);
}

bool GradientStore::are_reached() const {
  return std::any_of(parameters_.begin(), parameters_.end(), [](const auto& parameter) {
    return parameter->is_active() && current_graph_task_runs(parameter->accumulator());
  });
}

void GradientStore::assign_slots() {
  const auto& buckets = plan_.buckets;
  const std::shared_ptr<void> owner = buckets->symmetric() ? buckets : nullptr;
  for (size_t bucket = 0; bucket < buckets->size(); ++bucket) {
    for (const auto& slot : buckets->plan().buckets[bucket].slots) {
      ParameterGradient& parameter = *parameters_[slot.parameter];
      const auto make_slot = [buckets, bucket, slot, owner, tensor = parameter.parameter()] {
        return SlotTensor(buckets->slot_tensor(bucket, slot, tensor), owner);
      };
      parameter.assign_slot(make_slot, plan_.births.slot(slot.parameter),
                            plan_.slots.empty() ? SlotTensor() : plan_.slots[slot.parameter]);
    }
  }
}

std::vector<SlotTensor> GradientStore::slots() const {
  std::vector<SlotTensor> slots;
  for (const auto& parameter : parameters_) slots.push_back(parameter->slot_tensor());
  return slots;
}

at::Tensor GradientStore::take(size_t index, const at::Tensor& gradient, double factor, Use may) {
  ParameterGradient& parameter = *parameters_[index];
  parameter.note_parameter();
  const bool is_born = parameter.is_born(gradient);
  if (!is_born) {
    copied_bytes_ += static_cast<int64_t>(parameter.parameter().nbytes());
    if (parameter.could_be_born(gradient)) plan_.births.learn(index, gradient);
  }
  if (!parameter.has_slot() || !may.slot || parameter.stays_outside()) {
    return factor == 1 ? gradient : gradient * factor;
  }
  if (is_born) {
    parameter.keep_born(gradient, factor);
  } else if (may.later && parameter.may_arrive_later(gradient)) {
    parameter.release_slot();
    parameter.expose_slot();
    moves_.add(plan_.bucket_of[index], gradient, parameter.parameter().grad(), factor);
  } else {
    moves_.finish(plan_.bucket_of[index]);  // which this one may be added to
    parameter.take(gradient, factor);
  }
  return {};
}

void GradientStore::move_into_slots() {
  for (const auto& parameter : parameters_) {
    if (parameter->has_slot()) parameter->move_into_slot();
  }
}

void GradientStore::leave_slots() noexcept {
  for (const auto& parameter : parameters_) {
    try {
      parameter->leave_slot();
    } catch (const std::exception&) {  // no memory: then there is no gradient
      parameter->parameter().mutable_grad() = at::Tensor();
    }
  }
}

void GradientStore::drop() {
  for (const auto& parameter : parameters_) {
    if (parameter->is_active()) parameter->parameter().mutable_grad() = at::Tensor();
  }
}

void GradientStore::fill_missing(size_t index, bool is_joined) {
  ParameterGradient& parameter = *parameters_[index];
  missing_.emplace_back(index, is_joined ? at::Tensor() : parameter.saved());
  if (is_joined || !parameter.move_into_slot()) parameter.clear_slot();
}

void GradientStore::publish_missing(const std::vector<BackwardReport>& reports) {
  for (const auto& [index, saved] : missing_) {
    const bool used =
        std::any_of(reports.begin(), reports.end(), [i = index](const BackwardReport& report) {
          return !report.has(BackwardReport::kJoined) && report.has_gradient(i);
        });
    if (used) {
      parameters_[index]->publish();
    } else {
      parameters_[index]->restore(saved);
    }
  }
}

void GradientStore::publish_outside() {
  for (const auto& parameter : parameters_) parameter->publish_outside();
}

void GradientStore::average_sparse(const std::vector<BackwardReport>& reports,
                                   const ReplicaGroup& group, bool is_joined) {
  double weights = 0;
  for (const BackwardReport& report : reports) weights += report.weight;
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const ParameterGradient& parameter = *parameters_[index];
    if (!parameter.is_sparse() || !parameter.is_active()) continue;
    const bool used =
        std::any_of(reports.begin(), reports.end(),
                    [&](const BackwardReport& report) { return report.has_gradient(index); });
    if (!used) continue;
    at::Tensor gradient = is_joined ? at::Tensor() : parameter.parameter().grad();
    if (!gradient.defined()) gradient = nothing_sparse(parameter.parameter());
    std::vector<at::Tensor> tensors{gradient};
    const auto work = group.group()->allreduce(tensors);
    if (work) work->wait();
    if (weights != 0) gradient.div_(weights);
    parameter.parameter().mutable_grad() = gradient;
  }
}

void GradientStore::warn_of_written_parameters(int rank) {
  if (has_warned_of_written_) return;
  for (size_t index = 0; index < size(); ++index) {
    if (!parameters_[index]->was_parameter_written()) continue;
    has_warned_of_written_ = true;
    return log(
        LogLevel::kWarning,
        "parameter '" + names_[index] + "' was changed on rank " + std::to_string(rank) +
            " within the backward pass, before its gradient was averaged, as by an optimizer "
            "in a hook. The ranks' parameters may differ from now on. Step the optimizer "
            "after backward(), or use ZeroRedundancyOptimizer with overlap_with_ddp=True.");
  }
}

void GradientStore::note_results() {
  for (const auto& parameter : parameters_) parameter->note_result();
}

void GradientStore::end_backward() {
  for (const auto& parameter : parameters_) parameter->end_backward();
  was_touched_.assign(was_touched_.size(), false);
  missing_.clear();
  copied_bytes_ = 0;
}

bool GradientStore::are_gone() const {
  return std::none_of(parameters_.begin(), parameters_.end(), [](const auto& parameter) {
    return parameter->parameter().grad().defined();
  });
}

bool GradientStore::has_old_ones() const {
  for (size_t index = 0; index < parameters_.size(); ++index) {
    const at::Tensor& gradient = parameters_[index]->parameter().grad();
    if (was_touched_[index] || !parameters_[index]->is_active()) continue;
    if (gradient.defined() && has_elements_but_zeros(gradient)) return true;
  }
  return false;
}

}  // namespace farandole
