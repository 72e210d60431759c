// SPDX-License-Identifier: Apache-2.0
// The same training as examples/quickstart/train.py, bit for bit.
#include <farandole/farandole.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  const auto world = farandole::init_process_group();  // finds its peers, or runs alone
  torch::manual_seed(static_cast<uint64_t>(farandole::rank()));
  farandole::DistributedDataParallel model(torch::nn::Linear(64, 10), world);
  torch::optim::SGD optimizer(model.parameters(), /*lr=*/0.1);
  torch::Tensor loss;
  for (int step = 0; step < 100; ++step) {
    const auto images = torch::randn({32, 64});
    const auto labels = torch::randint(10, {32}, torch::kLong);
    loss = torch::nn::functional::cross_entropy(model.forward(images), labels);
    optimizer.zero_grad();
    loss.backward();  // gradients become the average of all ranks' while it runs
    optimizer.step();
  }
  std::printf("rank %d of %d: loss %.9g\n", farandole::rank(), farandole::world_size(),
              static_cast<double>(loss.item<float>()));
}
