// SPDX-License-Identifier: Apache-2.0
// Fits a line with a warm-up and a cosine, and goes on from a checkpoint in the middle of an epoch:
//
//   ./train_regression checkpoints 30                                      # 30 of 60 steps
//   torchrun --nproc-per-node 2 --no-python ./train_regression checkpoints  # the others
//
// Every step has a batch of 32 samples, however many ranks share them out, and a checkpoint may be
// loaded by another number of ranks than has saved it. So the losses are always the same, but for
// the rounding of sums in another order.
#include <farandole/farandole.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <string>

constexpr int64_t kBatch = 32;  // samples of one step, over all ranks
constexpr int64_t kSamples = 500, kFeatures = 8, kSteps = 60, kWarmup = 10;

/// Features and their noisy sum; the same on every rank.
struct Sums : torch::data::datasets::Dataset<Sums> {
  Sums() {
    torch::manual_seed(1);
    features = torch::randn({kSamples, kFeatures});
    sums = features.sum(1, /*keepdim=*/true) + 0.1 * torch::randn({kSamples, 1});
  }
  torch::data::Example<> get(size_t index) override {
    const auto row = static_cast<int64_t>(index);
    return {features[row], sums[row]};
  }
  std::optional<size_t> size() const override { return kSamples; }

  torch::Tensor features, sums;
};

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: %s CHECKPOINTS [STEPS [PROFILE]]\n", argv[0]);
    return 1;
  }
  const std::string checkpoints = argv[1];  // a folder
  const int64_t last_step = argc > 2 ? std::atoll(argv[2]) : kSteps;
  const auto world = farandole::init_process_group();
  if (argc > 3) farandole::profiler::start({argv[3]});  // until the end
  const int64_t batch_size = kBatch / farandole::world_size();
  torch::manual_seed(0);
  torch::nn::Linear net(kFeatures, 1);
  farandole::DistributedDataParallel model(net, world);

  // A learning rate that was tuned for batches of 8, a warm-up and a cosine.
  const double lr = farandole::linear_scaled_lr(0.005, kBatch, 8);
  torch::optim::SGD optimizer(model.parameters(), torch::optim::SGDOptions(lr).momentum(0.9));
  farandole::SequentialLR scheduler(
      optimizer,
      {farandole::schedule_of<farandole::LinearLR>(0.1, 1.0, kWarmup),
       farandole::schedule_of<farandole::CosineAnnealingLR>(kSteps - kWarmup)},
      {kWarmup});

  // The samples of this rank in each epoch. The loader has a copy, which shares epoch and position.
  farandole::DistributedSampler sampler(kSamples);
  auto loader = torch::data::make_data_loader(Sums().map(torch::data::transforms::Stack<>()),
                                              sampler, static_cast<size_t>(batch_size));

  farandole::Training training;
  training.model = net.get();
  training.optimizer = &optimizer;
  training.scheduler = &scheduler;
  training.sampler = &sampler;
  farandole::resume_or_start(checkpoints, training);
  int64_t step = scheduler.last_epoch();
  for (size_t epoch = sampler.epoch(); step < last_step; ++epoch) {
    sampler.set_epoch(epoch);
    training.consumed = 0;  // samples of this rank since the pass began
    for (const auto& batch : *loader) {
      torch::Tensor loss;
      {
        const farandole::Annotation annotation("Loss");
        loss = torch::mse_loss(model.forward(batch.data), batch.target);
      }
      optimizer.zero_grad();
      loss.backward();
      optimizer.step();
      scheduler.step();
      training.consumed += static_cast<size_t>(batch.data.size(0));
      const auto average = loss.detach() / farandole::world_size();
      farandole::all_reduce(average);
      ++step;
      if (farandole::rank() == 0) {
        std::printf("step %lld: loss %.4f, next lr %.9g\n", static_cast<long long>(step),
                    average.item<double>(), scheduler.get_last_lr()[0]);
      }
      if (step == last_step) break;
    }
    if (step == last_step) farandole::save_checkpoint(checkpoints, training);
  }
}
