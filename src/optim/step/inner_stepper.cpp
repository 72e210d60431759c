// SPDX-License-Identifier: Apache-2.0
#include "optim/step/inner_stepper.h"

#include <ATen/ops/empty_strided.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "farandole/error.h"
#include "optim/shards/shard_tensors.h"

namespace farandole {
namespace {

constexpr size_t kMostFields = 4;  // of a StateFormat

/// What ranks send each other about the state of one parameter.
struct OutlineMessage {
  int64_t exists;
  int64_t step;
  int64_t dtypes[kMostFields];  ///< -1: no tensor
};

StateOutline outline_of(const OutlineMessage& message) {
  StateOutline outline;
  outline.exists = message.exists != 0;
  outline.step = message.step;
  for (const int64_t dtype : message.dtypes) {
    outline.dtypes.push_back(dtype < 0 ? std::nullopt
                                       : std::optional(static_cast<at::ScalarType>(dtype)));
  }
  return outline;
}

OutlineMessage message_of(const StateFields& fields) {
  OutlineMessage message{1, fields.step == nullptr ? 0 : *fields.step, {-1, -1, -1, -1}};
  for (size_t field = 0; field < fields.tensors.size(); ++field) {
    const at::Tensor& tensor = *fields.tensors[field].second;
    if (tensor.defined()) message.dtypes[field] = static_cast<int64_t>(tensor.scalar_type());
  }
  return message;
}

/// The elements of a tensor that is like `shard`, in the order of the shard's memory, as one
/// dimension.
at::Tensor elements_of(const at::Tensor& tensor, const at::Tensor& shard) {
  if (!tensor.defined() || tensor.dim() == 1) return tensor;
  if (tensor.strides() == shard.strides()) return tensor.as_strided({tensor.numel()}, {1});
  const at::Tensor alike = at::empty_strided(shard.sizes(), shard.strides(), tensor.options());
  alike.copy_(tensor);
  return alike.as_strided({tensor.numel()}, {1});
}

}  // namespace

InnerStepper::InnerStepper(ShardedOptimizer& engine, const Groups& groups, Factory make)
    : engine_(engine),
      groups_(groups),
      make_(std::move(make)),
      optimizer_(make_on_shards()),
      format_(state_format_of(optimizer_->defaults())) {}

std::unique_ptr<torch::optim::Optimizer> InnerStepper::make_on_shards() {
  Groups shards;
  for (size_t group = 0; group < groups_.size(); ++group) {
    shards.emplace_back(engine_.shards(group), groups_[group].options().clone());
  }
  auto optimizer = make_(std::move(shards));
  if (optimizer && optimizer->param_groups().size() == groups_.size()) return optimizer;
  throw InvalidArgument(
      "factory-parameters",
      "the factory did not make an optimizer of the parameter groups that it was given.",
      "it is called with the shards of this rank, one group for each parameter group.",
      "pass the factory's argument to the optimizer's constructor.");
}

/// Takes the shards of parameters that were added, or were frozen until now, with their initial
/// state, which only the constructor of Adagrad makes.
void InnerStepper::take_new_shards(torch::optim::Optimizer& fresh) {
  for (auto& [shard, state] : fresh.state()) {
    auto& present = optimizer_->state()[shard];
    if (!present) present = std::move(state);
  }
  for (size_t group = 0; group < groups_.size(); ++group) {
    optimizer_->param_groups()[group].params() = fresh.param_groups()[group].params();
  }
}

/// Takes new shards, of this step or of an earlier one in which taking them failed. Local.
void InnerStepper::catch_up() {
  for (size_t group = 0; group < groups_.size(); ++group) {
    if (optimizer_->param_groups()[group].params().size() == engine_.pieces(group).size()) continue;
    take_new_shards(*make_on_shards());
    break;
  }
  is_behind_ = false;
}

void InnerStepper::read() {
  description_.clear();
  for (size_t group = 0; group < groups_.size(); ++group) {
    const auto& options = groups_[group].options();
    description_ += (group == 0 ? "" : "; ") + description_of(options);
    optimizer_->param_groups()[group].set_options(options.clone());
  }
}

void InnerStepper::step() {
  is_behind_ = engine_.begin_step(description_) || is_behind_;
  if (engine_.was_left_out()) return;
  try {
    if (is_behind_) catch_up();
    optimizer_->step();
  } catch (...) {
    engine_.fail_step(text_of_exception());
    throw;
  }
  engine_.end_step();
}

void InnerStepper::prepare_group() { prepared_ = make_on_shards(); }

void InnerStepper::add_group() {
  optimizer_->add_param_group({std::vector<at::Tensor>(), groups_.back().options().clone()});
  take_new_shards(*std::exchange(prepared_, nullptr));
}

/// The same on all ranks.
bool InnerStepper::has_stepped() const {
  for (size_t group = 0; group < groups_.size(); ++group) {
    const std::vector<int64_t> steps = engine_.steps(group);
    if (std::any_of(steps.begin(), steps.end(), [](int64_t n) { return n > 0; })) return true;
  }
  return false;
}

void InnerStepper::rebuild(const Group& group) {
  const bool has_state = has_stepped();
  if (has_state) format();
  engine_.begin_rebuild(group);
  FullStates states;
  if (has_state) states = gather(/*to=*/-1);
  std::unique_ptr<torch::optim::Optimizer> fresh;
  engine_.finish_rebuild([&] {
    fresh = make_on_shards();
    if (has_state) put_states(*fresh, WholeStates(states, format(), groups_));
  });
  optimizer_ = std::move(fresh);
}

int64_t InnerStepper::state_bytes() const {
  int64_t bytes = engine_.state_bytes();
  for (const auto& [shard, state] : optimizer_->state()) {
    if (format_ == nullptr || !format_->has(*state)) continue;
    for (const auto& field : format_->fields(*state).tensors) {
      if (field.second->defined()) bytes += static_cast<int64_t>(field.second->nbytes());
    }
  }
  return bytes;
}

/// The state of a shard; null if it has none.
torch::optim::OptimizerParamState* InnerStepper::state_of(const at::Tensor& shard) const {
  const auto found = optimizer_->state().find(shard.unsafeGetTensorImpl());
  if (found == optimizer_->state().end() || !found->second) return nullptr;
  return found->second.get();
}

FullStates InnerStepper::gather(int to) {
  const StateFormat& format = this->format();
  catch_up();
  const auto outlines = common_outlines();
  FullStates states;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const std::vector<at::Tensor>& shards = optimizer_->param_groups()[group].params();
    const auto piece_of = [&](size_t field, size_t piece) {
      State* const state = state_of(shards[piece]);
      if (state == nullptr) return at::Tensor();
      return elements_of(*format.fields(*state).tensors[field].second, shards[piece]);
    };
    states.push_back(gather_states(engine_, format, group, outlines[group], piece_of, to));
    gather_masters(engine_, group, groups_[group].params(), states.back(), to);
  }
  return states;
}

/// What this rank's pieces know: an OutlineMessage for each parameter.
std::string InnerStepper::own_outlines() const {
  std::string text;
  for (size_t group = 0; group < groups_.size(); ++group) {
    std::vector<OutlineMessage> messages(groups_[group].params().size());
    const auto pieces = engine_.pieces(group);
    const std::vector<at::Tensor>& shards = optimizer_->param_groups()[group].params();
    for (size_t i = 0; i < pieces.size(); ++i) {
      State* const state = state_of(shards[i]);
      if (state != nullptr) messages[pieces[i].parameter] = message_of(format().fields(*state));
    }
    text.append(reinterpret_cast<const char*>(messages.data()),
                messages.size() * sizeof(OutlineMessage));
  }
  return text;
}

/// Completes the outlines on ranks that have no piece of a parameter, by those of ranks that have
/// one. Collective.
std::vector<std::vector<StateOutline>> InnerStepper::common_outlines() const {
  const std::vector<std::string> texts = engine_.all_gather(own_outlines());
  std::vector<std::vector<StateOutline>> outlines;
  size_t offset = 0;
  for (const auto& group : groups_) {
    outlines.emplace_back();
    for (size_t i = 0; i < group.params().size(); ++i, offset += sizeof(OutlineMessage)) {
      OutlineMessage message{};
      for (const std::string& text : texts) {
        if (message.exists == 0) std::memcpy(&message, text.data() + offset, sizeof(message));
      }
      outlines.back().push_back(outline_of(message));
    }
  }
  return outlines;
}

std::vector<OwnedState> InnerStepper::owned() {
  const StateFormat& format = this->format();
  catch_up();
  std::vector<OwnedState> all;
  for (size_t group = 0; group < groups_.size(); ++group) {
    const std::vector<at::Tensor>& shards = optimizer_->param_groups()[group].params();
    const std::vector<int64_t> steps = engine_.steps(group);
    const auto pieces = engine_.pieces(group);
    const auto masters = masters_of(engine_, group, groups_[group].params());
    for (size_t i = 0; i < pieces.size(); ++i) {
      OwnedState own{group, pieces[i], {}, {}};
      if (State* const state = state_of(shards[i])) {  // Adagrad has one before the first step

        const StateFields fields = format.fields(*state);
        if (fields.step != nullptr) own.step = *fields.step;
        for (const auto& [name, tensor] : fields.tensors) {
          if (tensor->defined()) own.parts.emplace_back(name, elements_of(*tensor, shards[i]));
        }
      }
      const bool has_stepped = steps[pieces[i].parameter] > 0;
      if (masters[i].defined() && has_stepped) own.parts.emplace_back(kMasterParameter, masters[i]);
      if (!own.parts.empty()) all.push_back(std::move(own));
    }
  }
  return all;
}

void InnerStepper::load(const SavedStates& states) {
  const c10::NoGradGuard no_grad;
  read();
  auto fresh = make_on_shards();
  put_states(*fresh, states);
  optimizer_ = std::move(fresh);
  for (size_t group = 0; group < groups_.size(); ++group) {
    load_masters(engine_, group, groups_[group].params(), states);
    std::vector<int64_t> steps;
    for (size_t i = 0; i < groups_[group].params().size(); ++i) {
      const SavedStates::Outline outline = states.outline(group, i);
      steps.push_back((outline.exists && outline.step > 0) || outline.has_master ? 1 : 0);
    }
    engine_.set_steps(group, steps);
  }
}

/// Gives each shard a copy of its part.
void InnerStepper::put_states(torch::optim::Optimizer& optimizer, const SavedStates& states) const {
  const StateFormat& format = this->format();
  for (size_t group = 0; group < groups_.size(); ++group) {
    const std::vector<at::Tensor>& shards = optimizer.param_groups()[group].params();
    const auto pieces = engine_.pieces(group);
    for (size_t i = 0; i < pieces.size(); ++i) {
      const SavedStates::Outline outline = states.outline(group, pieces[i].parameter);
      if (!outline.exists) continue;
      auto state = format.make_state();
      const StateFields fields = format.fields(*state);
      if (fields.step != nullptr) *fields.step = outline.step;
      for (const auto& [name, tensor] : fields.tensors) {
        const auto dtype = states.dtype(group, pieces[i].parameter, name);
        if (!dtype) continue;
        *tensor = at::empty_strided(shards[i].sizes(), shards[i].strides(),
                                    shards[i].options().dtype(*dtype));
        states.copy_part(group, pieces[i], name, elements_of(*tensor, shards[i]));
      }
      optimizer.state()[shards[i].unsafeGetTensorImpl()] = std::move(state);
    }
  }
}

const StateFormat& InnerStepper::format() const {
  const auto& states = optimizer_->state();
  const bool is_known =
      format_ != nullptr && std::all_of(states.begin(), states.end(), [&](const auto& item) {
        return !item.second || format_->has(*item.second);
      });
  if (is_known) return *format_;
  throw NotSupported(
      "state-of-factory",
      "the state of an optimizer with " + class_of(optimizer_->defaults()) + " cannot be gathered.",
      "a factory made the optimizer; supported are the states of LibTorch's SGD, Adam, AdamW, "
      "RMSprop and Adagrad, and of LAMB and LARS.",
      "use one of those, or save only the parameters and start with new optimizer state.");
}

}  // namespace farandole
