// SPDX-License-Identifier: Apache-2.0
// The same training as examples/quickstart/train.py, bit for bit.
#include <farandole/farandole.h>
#include <torch/torch.h>

#include <cstdio>

int main() {
  const auto world = farandole::init_process_group();  // finds its peers, or runs alone
  torch::manual_seed(static_cast<uint64_t>(farandole::rank()));
  farandole::DistributedDataParallel model(torch::nn::Linear(64, 10), world);
  torch::optim::SGD optimizer(model.parameters(), /*lr=*/0.5);
  for (int epoch = 0; epoch < 5; ++epoch) {
    torch::Tensor loss;
    torch::Tensor accuracy;
    for (int step = 0; step < 100; ++step) {
      const auto images = torch::randn({32, 64});
      const auto labels = images.narrow(1, 0, 10).argmax(1);
      const auto outputs = model.forward(images);
      loss = torch::nn::functional::cross_entropy(outputs, labels);
      optimizer.zero_grad();
      loss.backward();  // gradients become the average of all ranks' while it runs
      optimizer.step();
      accuracy = outputs.argmax(1).eq(labels).to(torch::kFloat).mean();
    }
    std::printf("rank %d of %d: epoch %d, loss %.9g, accuracy %.3f\n", farandole::rank(),
                farandole::world_size(), epoch, static_cast<double>(loss.item<float>()),
                static_cast<double>(accuracy.item<float>()));
  }
}
