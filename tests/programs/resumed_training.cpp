// SPDX-License-Identifier: Apache-2.0
#include <farandole/farandole.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

// resumed_training PATH STEPS OPTIMIZER HOW: the C++ side of tests/python/test_checkpoint_cpp.py.
// Goes on from the checkpoint at PATH, if there is one, for some steps, and saves; rank 0 prints
// the values that it has found. Every rank trains with the same data. HOW: "plain", "full" or
// "shard", and "-bf16" for parameters of that type, "-factory" for an optimizer of a factory,
// "-groups" for two parameter groups.

namespace {

using torch::optim::OptimizerOptions;

std::unique_ptr<OptimizerOptions> options_of(const std::string& name) {
  const auto copy = [](const OptimizerOptions& options) { return options.clone(); };
  if (name == "SGD") return copy(torch::optim::SGDOptions(0.1).momentum(0.9).nesterov(true));
  if (name == "Adam") return copy(torch::optim::AdamOptions(0.01).amsgrad(true));
  if (name == "AdamW") return copy(torch::optim::AdamWOptions(0.01).betas({0.8, 0.99}));
  if (name == "RMSprop")
    return copy(torch::optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
  if (name == "Adagrad") return copy(torch::optim::AdagradOptions(0.1).lr_decay(0.01));
  if (name == "LAMB") return copy(farandole::LambOptions(0.01));
  return copy(farandole::LarsOptions(0.1));
}

using Groups = std::vector<torch::optim::OptimizerParamGroup>;

std::unique_ptr<torch::optim::Optimizer> plain(const std::string& name, Groups groups,
                                               const OptimizerOptions& options) {
  using namespace torch::optim;
  if (name == "SGD") {
    return std::make_unique<SGD>(std::move(groups), static_cast<const SGDOptions&>(options));
  }
  if (name == "Adam") {
    return std::make_unique<Adam>(std::move(groups), static_cast<const AdamOptions&>(options));
  }
  if (name == "AdamW") {
    return std::make_unique<AdamW>(std::move(groups), static_cast<const AdamWOptions&>(options));
  }
  if (name == "RMSprop") {
    return std::make_unique<RMSprop>(std::move(groups),
                                     static_cast<const RMSpropOptions&>(options));
  }
  return std::make_unique<Adagrad>(std::move(groups), static_cast<const AdagradOptions&>(options));
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string path = argv[1];
  const int64_t steps = std::atoll(argv[2]);
  const std::string name = argv[3];
  const std::string how = argv[4];
  const auto has = [&how](const char* word) { return how.find(word) != std::string::npos; };
  const auto world = farandole::init_process_group();
  torch::manual_seed(10 + static_cast<uint64_t>(farandole::rank()));
  const auto dtype = has("bf16") ? torch::kBFloat16 : torch::kFloat;
  torch::nn::Sequential net(torch::nn::Linear(torch::nn::LinearOptions(16, 8).bias(false)),
                            torch::nn::BatchNorm1d(8), torch::nn::ReLU(), torch::nn::Linear(8, 4));
  net->to(dtype);
  farandole::DistributedDataParallel model(net, world);

  Groups groups;
  auto options = options_of(name);
  if (has("groups")) {
    std::vector<at::Tensor> biases, others;
    for (const auto& each : net->named_parameters()) {
      (each.value().dim() == 1 ? biases : others).push_back(each.value());
    }
    groups.emplace_back(biases, options->clone());  // Python has them in the other order
    groups.emplace_back(others, options->clone());
  } else {
    groups.emplace_back(net->parameters());
  }
  farandole::ZeroOptions zero;
  if (has("shard")) zero.gradients = farandole::GradientMode::kShard;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  if (has("plain")) {
    optimizer = plain(name, groups, *options);
  } else if (has("factory")) {
    optimizer = std::make_unique<farandole::ZeroRedundancyOptimizer>(
        groups, [&](Groups shards) { return plain(name, std::move(shards), *options); }, zero);
  } else {
    optimizer = std::make_unique<farandole::ZeroRedundancyOptimizer>(groups, *options, zero);
  }
  using farandole::schedule_of;
  std::unique_ptr<farandole::LRScheduler> scheduler;
  if (has("lambda")) {
    scheduler = std::make_unique<farandole::LambdaLR>(
        *optimizer, [](int64_t epoch) { return 1.0 / static_cast<double>(1 + epoch); });
  } else if (has("chained")) {
    scheduler = std::make_unique<farandole::ChainedScheduler>(
        *optimizer,
        std::vector<farandole::LRSchedulerFactory>{schedule_of<farandole::LinearLR>(0.25, 1.0, 3),
                                                   schedule_of<farandole::ExponentialLR>(0.75)});
  } else {
    scheduler = std::make_unique<farandole::SequentialLR>(
        *optimizer,
        std::vector<farandole::LRSchedulerFactory>{
            schedule_of<farandole::LinearLR>(0.25, 1.0, 3),
            schedule_of<farandole::MultiStepLR>(std::vector<int64_t>{2, 4, 4}, 0.5)},
        std::vector<int64_t>{3});
  }
  farandole::GradScalerOptions scaling;
  scaling.init_scale = 256;
  scaling.growth_interval = 2;
  farandole::GradScaler scaler(scaling);
  farandole::DistributedSampler sampler(96);

  farandole::Training training;
  training.model = model.module().get();
  training.optimizer = optimizer.get();
  training.scheduler = scheduler.get();
  training.scaler = &scaler;
  training.sampler = &sampler;
  auto values = farandole::resume_or_start(path, training)
                    .value_or(farandole::CheckpointValues{{"step", int64_t{0}}});
  if (farandole::rank() == 0) {
    for (const auto& [key, value] : values) {
      std::printf("%s %s\n", key.c_str(), c10::str(value).c_str());
    }
    std::printf("place %lld\n", static_cast<long long>(sampler.state(0).at("position")));
  }
  const int64_t first = values["step"].toInt();
  for (int64_t step = first; step < first + steps; ++step) {
    const auto x =
        torch::sin(torch::arange(64).reshape({4, 16}) * (0.1 + static_cast<double>(step)));
    optimizer->zero_grad();
    scaler.scale(model.forward(x.to(dtype)).to(torch::kFloat).square().mean()).backward();
    scaler.step(*optimizer);
    scaler.update();
    scheduler->step();
  }
  values["step"] = first + steps;
  const size_t before = static_cast<size_t>(sampler.state(0).at("position"));
  training.consumed =
      static_cast<size_t>(first + steps) * 12 / static_cast<size_t>(world->getSize()) -
      before / static_cast<size_t>(world->getSize());
  farandole::SaveCheckpointOptions how_to_save;
  how_to_save.values = values;
  how_to_save.step = first + steps;
  how_to_save.asynchronous = true;  // the end of the program waits for it
  farandole::save_checkpoint(path, training, how_to_save);
}
