// SPDX-License-Identifier: Apache-2.0
#include <ATen/ops/zeros.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>
#include <torch/serialize.h>

#include <cmath>
#include <cstdio>
#include <iostream>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "farandole/optim/lamb_options.h"
#include "farandole/optim/lr_scheduler/chained_scheduler.h"
#include "farandole/optim/lr_scheduler/constant_lr.h"
#include "farandole/optim/lr_scheduler/cosine_annealing_lr.h"
#include "farandole/optim/lr_scheduler/cosine_annealing_warm_restarts.h"
#include "farandole/optim/lr_scheduler/exponential_lr.h"
#include "farandole/optim/lr_scheduler/lambda_lr.h"
#include "farandole/optim/lr_scheduler/linear_lr.h"
#include "farandole/optim/lr_scheduler/multi_step_lr.h"
#include "farandole/optim/lr_scheduler/one_cycle_lr.h"
#include "farandole/optim/lr_scheduler/polynomial_lr.h"
#include "farandole/optim/lr_scheduler/reduce_lr_on_plateau.h"
#include "farandole/optim/lr_scheduler/sequential_lr.h"
#include "farandole/optim/lr_scheduler/step_lr.h"

// Prints learning rates for tests/python/test_lr_schedulers.py. Each line of the input is a case:
//
//   <optimizer> <groups> <lr of each> <steps> <resume at, or -1> <scheduler>
//
// and a scheduler is a name and the arguments of its constructor; lists begin with their length.
// For each case the output has a line: the learning rates and then the momenta of all groups before
// each step, in hexadecimal. At a resume, the state goes through an archive into a new scheduler of
// a new optimizer.

namespace {

using namespace farandole;

template <class Value>
Value read(std::istream& in) {
  std::string word;
  if (!(in >> word)) throw std::invalid_argument("a case is too short");
  if constexpr (std::is_same_v<Value, std::string>) return word;
  if constexpr (std::is_same_v<Value, double>) return std::stod(word);
  if constexpr (std::is_same_v<Value, int64_t>) return std::stoll(word);
  if constexpr (std::is_same_v<Value, bool>) return word == "1";
}

template <class Value>
std::vector<Value> read_list(std::istream& in) {
  std::vector<Value> values(static_cast<size_t>(read<int64_t>(in)));
  for (auto& value : values) value = read<Value>(in);
  return values;
}

template <class Options>
std::unique_ptr<torch::optim::Optimizer> made(const std::vector<double>& lrs) {
  struct Still : torch::optim::Optimizer {
    using torch::optim::Optimizer::Optimizer;
    at::Tensor step(LossClosure) override { return {}; }
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double lr : lrs) {
    groups.emplace_back(std::vector<at::Tensor>{at::zeros({1})}, std::make_unique<Options>(lr));
  }
  return std::make_unique<Still>(groups, std::make_unique<Options>(0.1));
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& name,
                                                      const std::vector<double>& lrs) {
  if (name == "SGD") return made<torch::optim::SGDOptions>(lrs);
  if (name == "RMSprop") return made<torch::optim::RMSpropOptions>(lrs);
  if (name == "Adam") return made<torch::optim::AdamOptions>(lrs);
  if (name == "AdamW") return made<torch::optim::AdamWOptions>(lrs);
  if (name == "LAMB") return made<LambOptions>(lrs);
  throw std::invalid_argument(name);
}

std::vector<LRSchedulerFactory> read_factories(std::istream& in);

LRSchedulerFactory read_one_cycle(std::istream& in) {
  const auto max_lr = read_list<double>(in);
  const auto total_steps = read<int64_t>(in);
  OneCycleOptions options;
  options.pct_start = read<double>(in);
  options.is_linear = read<bool>(in);
  options.cycle_momentum = read<bool>(in);
  options.base_momentum = read<double>(in);
  options.max_momentum = read<double>(in);
  options.div_factor = read<double>(in);
  options.final_div_factor = read<double>(in);
  options.three_phase = read<bool>(in);
  return schedule_of<OneCycleLR>(PerGroup(max_lr), total_steps, options);
}

LRSchedulerFactory read_factory(std::istream& in) {
  const auto name = read<std::string>(in);
  const auto number = [&in] { return read<double>(in); };
  const auto integer = [&in] { return read<int64_t>(in); };
  if (name == "LinearLR") {
    const double start = number();
    const double end = number();
    return schedule_of<LinearLR>(start, end, integer());
  }
  if (name == "ConstantLR") {
    const double factor = number();
    return schedule_of<ConstantLR>(factor, integer());
  }
  if (name == "StepLR") {
    const int64_t size = integer();
    return schedule_of<StepLR>(size, number());
  }
  if (name == "MultiStepLR") {
    const auto milestones = read_list<int64_t>(in);
    return schedule_of<MultiStepLR>(milestones, number());
  }
  if (name == "ExponentialLR") return schedule_of<ExponentialLR>(number());
  if (name == "LambdaLR") {  // of one number
    const LambdaLR::Function shrinking = [rate = number()](int64_t epoch) {
      return 1.0 / (1.0 + rate * static_cast<double>(epoch));
    };
    return schedule_of<LambdaLR>(shrinking);
  }
  if (name == "PolynomialLR") {
    const int64_t total = integer();
    return schedule_of<PolynomialLR>(total, number());
  }
  if (name == "CosineAnnealingLR") {
    const int64_t period = integer();
    return schedule_of<CosineAnnealingLR>(period, number());
  }
  if (name == "CosineAnnealingWarmRestarts") {
    const int64_t first = integer();
    const int64_t growth = integer();
    return schedule_of<CosineAnnealingWarmRestarts>(first, growth, number());
  }
  if (name == "OneCycleLR") return read_one_cycle(in);
  if (name == "SequentialLR") {
    const auto schedulers = read_factories(in);
    return schedule_of<SequentialLR>(schedulers, read_list<int64_t>(in));
  }
  if (name == "ChainedScheduler") return schedule_of<ChainedScheduler>(read_factories(in));
  throw std::invalid_argument(name);
}

std::vector<LRSchedulerFactory> read_factories(std::istream& in) {
  std::vector<LRSchedulerFactory> factories(static_cast<size_t>(read<int64_t>(in)));
  for (auto& factory : factories) factory = read_factory(in);
  return factories;
}

void print(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  for (const auto& group : groups) std::printf("%a ", group.options().get_lr());
  for (const auto& group : groups) {
    const auto* const options = &group.options();
    double momentum = 0;
    if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(options)) {
      momentum = sgd->momentum();
    } else if (const auto* adam = dynamic_cast<const torch::optim::AdamOptions*>(options)) {
      momentum = std::get<0>(adam->betas());
    } else if (const auto* adamw = dynamic_cast<const torch::optim::AdamWOptions*>(options)) {
      momentum = std::get<0>(adamw->betas());
    } else if (const auto* lamb = dynamic_cast<const LambOptions*>(options)) {
      momentum = std::get<0>(lamb->betas());
    } else if (const auto* rmsprop = dynamic_cast<const torch::optim::RMSpropOptions*>(options)) {
      momentum = rmsprop->momentum();
    }
    std::printf("%a ", momentum);
  }
}

/// Runs a case: `make` makes the scheduler of an optimizer, and `step` steps it.
template <class Make, class Step>
void run(std::istream& in, const std::string& kind, const std::vector<double>& lrs, int64_t steps,
         int64_t resume_at, const Make& make, const Step& step) {
  auto optimizer = optimizer_of(kind, lrs);
  auto scheduler = make(*optimizer);
  for (int64_t number = 0; number < steps; ++number) {
    if (number == resume_at) {
      std::stringstream stream;
      torch::save(*scheduler, stream);
      auto other = optimizer_of(kind, std::vector<double>(lrs.size(), 123));
      scheduler = make(*other);
      torch::load(*scheduler, stream);
      optimizer = std::move(other);
    }
    print(*optimizer);
    if (number + 1 < steps) step(*scheduler, number);
  }
  std::printf("\n");
  if (in.fail()) throw std::invalid_argument("a case could not be read");
}

void run_plateau(std::istream& in, const std::string& kind, const std::vector<double>& lrs,
                 int64_t steps, int64_t resume_at) {
  ReduceLROnPlateauOptions options;
  options.is_max = read<bool>(in);
  options.factor = read<double>(in);
  options.patience = read<int64_t>(in);
  options.threshold = read<double>(in);
  options.is_threshold_abs = read<bool>(in);
  options.cooldown = read<int64_t>(in);
  options.min_lr = read_list<double>(in);
  options.eps = read<double>(in);
  const auto metrics = read_list<double>(in);
  run(
      in, kind, lrs, steps, resume_at,
      [&](torch::optim::Optimizer& of) { return std::make_unique<ReduceLROnPlateau>(of, options); },
      [&](ReduceLROnPlateau& scheduler, int64_t number) {
        scheduler.step(metrics.at(static_cast<size_t>(number)));
      });
}

void run_fractions(std::istream& in, const std::string& kind, const std::vector<double>& lrs,
                   int64_t steps, int64_t resume_at) {
  const auto first = read<int64_t>(in);
  const auto growth = read<int64_t>(in);
  const auto least = read<double>(in);
  const auto part = read<double>(in);
  run(
      in, kind, lrs, steps, resume_at,
      [&](torch::optim::Optimizer& of) {
        return std::make_unique<CosineAnnealingWarmRestarts>(of, first, growth, least);
      },
      [&](CosineAnnealingWarmRestarts& scheduler, int64_t number) {
        scheduler.step(static_cast<double>(number) * part);
      });
}

void run_case(const std::string& line) {
  std::istringstream in(line);
  const auto kind = read<std::string>(in);
  const auto lrs = read_list<double>(in);
  const auto steps = read<int64_t>(in);
  const auto resume_at = read<int64_t>(in);
  const auto begin = in.tellg();
  const auto name = read<std::string>(in);
  if (name == "ReduceLROnPlateau") return run_plateau(in, kind, lrs, steps, resume_at);
  if (name == "fractions") return run_fractions(in, kind, lrs, steps, resume_at);
  in.seekg(begin);
  const LRSchedulerFactory factory = read_factory(in);
  run(
      in, kind, lrs, steps, resume_at, [&](torch::optim::Optimizer& of) { return factory(of); },
      [](LRScheduler& scheduler, int64_t) { scheduler.step(); });
}

}  // namespace

int main() {
  std::string line;
  while (std::getline(std::cin, line)) run_case(line);
}
