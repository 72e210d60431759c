// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/optimizer_options.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <tuple>

#include "checkpoint/training/values_json.h"
#include "farandole/error.h"
#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lars_options.h"

namespace farandole::checkpoint {
namespace {

namespace optim = torch::optim;

// Each lists the options of a class by their names in Python, for a visitor of doubles, bools and
// pairs of doubles.

template <class Visitor>
void visit(optim::SGDOptions& options, Visitor&& each) {
  each("lr", options.lr());
  each("momentum", options.momentum());
  each("dampening", options.dampening());
  each("weight_decay", options.weight_decay());
  each("nesterov", options.nesterov());
}

/// AdamOptions and AdamWOptions.
template <class Options, class Visitor>
void visit_adam(Options& options, Visitor&& each) {
  each("lr", options.lr());
  each("betas", options.betas());
  each("eps", options.eps());
  each("weight_decay", options.weight_decay());
  each("amsgrad", options.amsgrad());
}

template <class Visitor>
void visit(optim::AdamOptions& options, Visitor&& each) {
  visit_adam(options, each);
}

template <class Visitor>
void visit(optim::AdamWOptions& options, Visitor&& each) {
  visit_adam(options, each);
}

template <class Visitor>
void visit(optim::RMSpropOptions& options, Visitor&& each) {
  each("lr", options.lr());
  each("alpha", options.alpha());
  each("eps", options.eps());
  each("weight_decay", options.weight_decay());
  each("momentum", options.momentum());
  each("centered", options.centered());
}

template <class Visitor>
void visit(optim::AdagradOptions& options, Visitor&& each) {
  each("lr", options.lr());
  each("lr_decay", options.lr_decay());
  each("weight_decay", options.weight_decay());
  each("initial_accumulator_value", options.initial_accumulator_value());
  each("eps", options.eps());
}

template <class Visitor>
void visit(LambOptions& options, Visitor&& each) {
  each("lr", options.lr());
  each("betas", options.betas());
  each("eps", options.eps());
  each("weight_decay", options.weight_decay());
  each("bias_correction", options.bias_correction());
}

template <class Visitor>
void visit(LarsOptions& options, Visitor&& each) {
  each("lr", options.lr());
  each("momentum", options.momentum());
  each("dampening", options.dampening());
  each("weight_decay", options.weight_decay());
  each("nesterov", options.nesterov());
  each("trust_coefficient", options.trust_coefficient());
  each("eps", options.eps());
}

template <class Options, class Function>
bool with(const char* name, optim::OptimizerOptions& options, Function&& function) {
  auto* const own = dynamic_cast<Options*>(&options);
  if (own == nullptr) return false;
  function(name, *own);
  return true;
}

/// Calls function(name of the class, options) with the options' own type.
template <class Function>
void with_type(optim::OptimizerOptions& options, Function&& function) {
  const bool is_known = with<optim::SGDOptions>("SGD", options, function) ||
                        with<optim::AdamOptions>("Adam", options, function) ||
                        with<optim::AdamWOptions>("AdamW", options, function) ||
                        with<optim::RMSpropOptions>("RMSprop", options, function) ||
                        with<optim::AdagradOptions>("Adagrad", options, function) ||
                        with<LambOptions>("LAMB", options, function) ||
                        with<LarsOptions>("LARS", options, function);
  if (is_known) return;
  throw_unknown_class();
}

struct Writer {
  void operator()(const char* name, double value) { members.emplace_back(name, json_of(value)); }
  void operator()(const char* name, bool value) { members.emplace_back(name, value); }
  void operator()(const char* name, const std::tuple<double, double>& value) {
    Json::Array two{json_of(std::get<0>(value)), json_of(std::get<1>(value))};
    members.emplace_back(name, Json::Object{{"!tuple", std::move(two)}});
  }

  Json::Object members;
};

struct Reader {
  void operator()(const char* name, double& value) { value = number_of(saved.at(name)); }
  void operator()(const char* name, bool& value) { value = saved.at(name).boolean(name); }
  void operator()(const char* name, std::tuple<double, double>& value) {
    const Json* const tuple = saved.at(name).find("!tuple");
    const Json::Array& two = (tuple != nullptr ? *tuple : saved.at(name)).array(name);
    if (two.size() != 2) throw JsonError(std::string(name) + " has not two numbers");
    value = {number_of(two[0]), number_of(two[1])};
  }

  const Json& saved;
};

bool is_on(const Json& saved, const char* name) {
  const Json* const value = saved.find(name);
  return value != nullptr && value->is_bool() && value->boolean();
}

void check_known(const Json& saved, const optim::OptimizerOptions& present) {
  const bool is_adam = dynamic_cast<const optim::AdamOptions*>(&present) != nullptr;
  for (const char* const name : {"maximize", "decoupled_weight_decay"}) {
    if (!is_on(saved, name) || (name == std::string("decoupled_weight_decay") && !is_adam)) {
      continue;
    }
    throw CheckpointError("checkpoint-option-of-python",
                          "the checkpoint has an optimizer with " + std::string(name) + "=True.",
                          "LibTorch's optimizers have no such option.", "continue in Python.");
  }
}

}  // namespace

[[noreturn]] void throw_unknown_class() {
  throw NotSupported("checkpoint-optimizer-class",
                     "a checkpoint got an optimizer of a class that it does not know.",
                     "it knows the options of SGD, Adam, AdamW, RMSprop, Adagrad, LAMB and LARS.",
                     "save such an optimizer with torch::save(), and leave it out here.");
}

std::string class_name_of(const optim::OptimizerOptions& options) {
  std::string found;
  const auto copy = options.clone();
  with_type(*copy, [&](const char* name, auto&) { found = name; });
  return found;
}

Json json_of(const optim::OptimizerOptions& options) {
  Writer writer;
  const auto copy = options.clone();
  with_type(*copy, [&](const char*, auto& own) { visit(own, writer); });
  return std::move(writer.members);
}

std::unique_ptr<optim::OptimizerOptions> options_of(const Json& saved,
                                                    const optim::OptimizerOptions& present) {
  check_known(saved, present);
  auto options = present.clone();
  with_type(*options, [&](const char*, auto& own) { visit(own, Reader{saved}); });
  return options;
}

}  // namespace farandole::checkpoint
