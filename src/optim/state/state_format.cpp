// SPDX-License-Identifier: Apache-2.0
#include "optim/state/state_format.h"

#include <c10/util/Exception.h>
#include <c10/util/Type.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/serialize.h>
#include <torch/optim/sgd.h>

#include <typeinfo>

#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars_options.h"
#include "farandole/optim/rule_of_options.h"
#include "optim/rules/hyperparameters.h"

namespace farandole {
namespace {

namespace optim = torch::optim;

StateFields fields_of(optim::SGDParamState& state) {
  return {nullptr, {{"momentum_buffer", &state.momentum_buffer()}}};
}

/// The format of AdamParamState and AdamWParamState, which have the same members.
template <class State>
StateFields fields_of(State& state) {
  return {&state.step(),
          {{"exp_avg", &state.exp_avg()},
           {"exp_avg_sq", &state.exp_avg_sq()},
           {"max_exp_avg_sq", &state.max_exp_avg_sq()}}};
}

StateFields fields_of(optim::RMSpropParamState& state) {
  return {&state.step(),
          {{"square_avg", &state.square_avg()},
           {"momentum_buffer", &state.momentum_buffer()},
           {"grad_avg", &state.grad_avg()}}};
}

StateFields fields_of(optim::AdagradParamState& state) {
  return {&state.step(), {{"sum", &state.sum()}}};
}

StateFields fields_of(LambParamState& state) {
  return {&state.step(), {{"exp_avg", &state.exp_avg()}, {"exp_avg_sq", &state.exp_avg_sq()}}};
}

StateFields fields_of(LarsParamState& state) {
  return {nullptr, {{"momentum_buffer", &state.momentum_buffer()}}};
}

/// Optimizer: void where LibTorch has none.
template <class TheseOptions, class TheseStates, class Optimizer>
class Format final : public StateFormat {
 public:
  std::unique_ptr<State> make_state() const override { return std::make_unique<TheseStates>(); }
  bool has(const State& state) const override {
    return dynamic_cast<const TheseStates*>(&state) != nullptr;
  }
  StateFields fields(State& state) const override {
    return fields_of(static_cast<TheseStates&>(state));
  }
  void copy(const Options& from, Options& to) const override {
    static_cast<TheseOptions&>(to) = static_cast<const TheseOptions&>(from);
  }
  void save(torch::serialize::OutputArchive& archive,
            const optim::Optimizer& optimizer) const override {
    optim::serialize<TheseStates, TheseOptions>(archive, optimizer);
  }
  void load(torch::serialize::InputArchive& archive, optim::Optimizer& optimizer) const override {
    optim::serialize<TheseStates, TheseOptions>(archive, optimizer);
  }
  std::unique_ptr<optim::Optimizer> make_optimizer(Groups groups,
                                                   const Options& defaults) const override {
    if constexpr (std::is_void_v<Optimizer>) {
      return nullptr;
    } else {
      return std::make_unique<Optimizer>(std::move(groups),
                                         static_cast<const TheseOptions&>(defaults));
    }
  }
};

template <class Options, class State, class Optimizer>
const StateFormat* format_if(const optim::OptimizerOptions& options) {
  static const Format<Options, State, Optimizer> format;
  return dynamic_cast<const Options*>(&options) == nullptr ? nullptr : &format;
}

}  // namespace

StateFormat::~StateFormat() = default;

const StateFormat* state_format_of(const optim::OptimizerOptions& options) {
  using namespace optim;
  for (const StateFormat* format : {
           format_if<SGDOptions, SGDParamState, SGD>(options),
           format_if<AdamOptions, AdamParamState, Adam>(options),
           format_if<AdamWOptions, AdamWParamState, AdamW>(options),
           format_if<RMSpropOptions, RMSpropParamState, RMSprop>(options),
           format_if<AdagradOptions, AdagradParamState, Adagrad>(options),
           format_if<LambOptions, LambParamState, void>(options),
           format_if<LarsOptions, LarsParamState, void>(options),
       }) {
    if (format != nullptr) return format;
  }
  return nullptr;
}

std::string class_of(const optim::OptimizerOptions& options) {
  return c10::demangle(typeid(options).name());
}

std::string description_of(const optim::OptimizerOptions& options) {
  if (const auto rule = update_rule_of(options)) return rule->description();
  if (const auto* const rmsprop = dynamic_cast<const optim::RMSpropOptions*>(&options)) {
    return "RMSprop(lr=" + text_of(rmsprop->lr()) + ", alpha=" + text_of(rmsprop->alpha()) +
           ", eps=" + text_of(rmsprop->eps()) +
           ", weight_decay=" + text_of(rmsprop->weight_decay()) +
           ", momentum=" + text_of(rmsprop->momentum()) +
           ", centered=" + text_of(rmsprop->centered()) + ")";
  }
  if (const auto* const adagrad = dynamic_cast<const optim::AdagradOptions*>(&options)) {
    return "Adagrad(lr=" + text_of(adagrad->lr()) + ", lr_decay=" + text_of(adagrad->lr_decay()) +
           ", weight_decay=" + text_of(adagrad->weight_decay()) +
           ", eps=" + text_of(adagrad->eps()) + ")";
  }
  try {
    return class_of(options) + "(lr=" + text_of(options.get_lr()) + ")";
  } catch (const c10::Error&) {  // no learning rate
    return class_of(options);
  }
}

}  // namespace farandole
