// SPDX-License-Identifier: Apache-2.0
// Gradients that are computed in their buckets (ddp/allocation/allocation_predictor.h).
#include <ATen/ops/eye.h>
#include <ATen/ops/ones.h>
#include <torch/nn/modules/conv.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "ddp/training.h"

namespace farandole::test {
namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

constexpr int64_t kWidth = 64;  // weights of 16 KiB, and batches of as many bytes
constexpr int64_t kWeightBytes = kWidth * kWidth * 4;

Sequential square_net() {
  Sequential net(Linear(kWidth, kWidth), Linear(kWidth, kWidth), Linear(kWidth, kWidth));
  fill_with_integers(*net);
  const c10::NoGradGuard no_grad;
  // Sparse, so that sums stay exact.
  for (auto& parameter : net->parameters()) {
    if (parameter.dim() == 2) parameter.mul_(at::eye(kWidth));
  }
  return net;
}

at::Tensor square_batch(int64_t seed) { return integers({kWidth, kWidth}, seed); }

class BirthsOf : public testing::TestWithParam<int> {
 protected:
  int world_size() const { return GetParam(); }

  template <class Make, class Body>
  void expect_exact(const Make& make, const Body& body) {
    expect_as_one_process("farandole", world_size(), make, body);
  }
};
INSTANTIATE_TEST_SUITE_P(Ranks, BirthsOf, testing::Values(1, 2, 4));

/// Bytes of weights that were copied into their buckets in each of `steps` steps.
template <class Step>
std::vector<int64_t> copied_weights(DistributedDataParallel<Sequential>& ddp, int steps,
                                    const Step& step) {
  int64_t biases = 0;
  for (const at::Tensor& parameter : ddp.parameters()) {
    if (parameter.dim() == 1) biases += static_cast<int64_t>(parameter.nbytes());
  }
  std::vector<int64_t> copied;
  for (int i = 0; i < steps; ++i) {
    zero_gradients(ddp.parameters());
    step(i);
    copied.push_back((ddp.stats().copied_bytes - biases) / kWeightBytes);
  }
  return copied;
}

TEST_P(BirthsOf, AreInTheirBucketsFromTheSecondBackwardOn) {
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(square_net(), group);
    // Ten: if somebody kept the gradients their slots would be closed by then.
    const auto copied = copied_weights(
        ddp, 10, [&](int step) { ddp.forward(square_batch(step)).sum().backward(); });
    std::vector<int64_t> expected(10, 0);
    expected[0] = 3;
    EXPECT_EQ(copied, expected);
  });
}

TEST_P(BirthsOf, GoOnInBatchesOfOtherSizes) {
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(square_net(), group);
    const auto copied = copied_weights(ddp, 6, [&](int step) {
      ddp.forward(integers({2 + 3 * step, kWidth}, step)).sum().backward();
    });
    EXPECT_EQ(copied.back(), 0);
  });
}

TEST_P(BirthsOf, AreCopiesWhereTheSettingSaysSo) {
  ::setenv("FARANDOLE_BORN_GRADIENTS", "0", 1);
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(square_net(), group);
    const auto copied =
        copied_weights(ddp, 3, [&](int step) { ddp.forward(square_batch(step)).sum().backward(); });
    EXPECT_EQ(copied, std::vector<int64_t>(3, 3));
  });
  ::unsetenv("FARANDOLE_BORN_GRADIENTS");
}

TEST_P(BirthsOf, AreCopiedWhileGradientsAddUp) {
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(square_net(), group);
    for (int step = 0; step < 4; ++step) ddp.forward(square_batch(step)).sum().backward();
    EXPECT_GE(ddp.stats().copied_bytes, 3 * kWeightBytes);
  });
}

TEST_P(BirthsOf, AreScaledInPlace) {
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(square_net(), group);
    const double weight = 1 << group->getRank();
    for (int step = 0; step < 4; ++step) {
      zero_gradients(ddp.parameters());
      ddp.set_loss_weight(weight);
      ddp.forward(at::ones({kWidth, kWidth})).sum().backward();
      // The same loss everywhere: its weighted mean is what one rank has.
      Sequential plain = square_net();
      plain->forward(at::ones({kWidth, kWidth})).sum().backward();
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()), "with weights");
    }
    EXPECT_LT(ddp.stats().copied_bytes, kWeightBytes);
  });
}

// --- what is not the gradient stays what it is

/// Adds a parameter of its input's shape: both get the same tensor as gradient.
struct ShiftImpl : torch::nn::Module {
  ShiftImpl() : shift(register_parameter("shift", at::ones({kWidth, kWidth}))) {}
  at::Tensor forward(const at::Tensor& x) { return x + shift; }

  at::Tensor shift;
};
TORCH_MODULE(Shift);

TEST_P(BirthsOf, AreNotWeightedTwiceBelowASum) {
  const auto shifted_net = [] {
    Sequential net(Linear(kWidth, kWidth), Shift(), Shift(), Linear(kWidth, kWidth));
    fill_with_integers(*net);
    return net;
  };
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(shifted_net(), group);
    for (int step = 0; step < 12; ++step) {
      zero_gradients(ddp.parameters());
      ddp.set_loss_weight(4);  // on each rank
      ddp.forward(square_batch(step)).sum().backward();
      Sequential plain = shifted_net();
      plain->forward(square_batch(step)).sum().backward();
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()),
                       "in step " + std::to_string(step));
    }
  });
}

/// oneDNN allocates scratch pads by address alone, other ones for each batch.
TEST_P(BirthsOf, AreRightInConvolutionsOfAllBatches) {
  const auto convolutions = [] {
    const auto options = torch::nn::Conv2dOptions(64, 64, 3).padding(1).bias(false);
    Sequential net{torch::nn::Conv2d(options), torch::nn::Conv2d(options)};
    const c10::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      parameter.copy_(integers(parameter.sizes(), 1));
      parameter.mul_(at::eye(64).view({64, 64, 1, 1}));
    }
    return net;
  };
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(convolutions(), group);
    for (const int64_t batch : {4, 4, 4, 1, 4, 3, 2, 1, 4}) {
      const at::Tensor x = integers({batch, 64, 12, 12}, batch);
      zero_gradients(ddp.parameters());
      ddp.forward(x).sum().backward();
      Sequential plain = convolutions();
      plain->forward(x).sum().backward();
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()),
                       "with a batch of " + std::to_string(batch));
    }
  });
}

/// A gradient that somebody keeps is not averaged with the others.
TEST_P(BirthsOf, DoNotChangeWhatAHookKeeps) {
  run_replicas("farandole", world_size(), [&](const Group& group) {
    Sequential net = square_net();
    DistributedDataParallel ddp(net, group);
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
    net->parameters()[2].register_hook(
        [&](const at::Tensor& gradient) { kept.emplace_back(gradient, gradient.clone()); });
    for (int step = 0; step < 12; ++step) {
      zero_gradients(ddp.parameters());
      ddp.forward(square_batch(10 * step + group->getRank())).sum().backward();
    }
    ASSERT_EQ(kept.size(), 12U);
    for (const auto& [gradient, copy] : kept) EXPECT_TRUE(at::equal(gradient, copy));
  });
}

/// The input's gradient, as large as a weight's, comes where the weight's came a step before.
TEST_P(BirthsOf, AreRightWhenTheGraphChanges) {
  std::mutex mutex;
  std::map<const void*, std::vector<std::pair<at::Tensor, at::Tensor>>> kept;
  expect_exact(square_net, [&](const auto& pass) {
    at::Tensor x = square_batch(100 * pass.step + pass.rank);
    x.requires_grad_(pass.step % 2 == 1);
    pass.forward(x).sum().backward();
    if (!x.grad().defined()) return;
    const std::lock_guard<std::mutex> lock(mutex);
    for (const auto& [gradient, copy] : kept[&pass.net]) EXPECT_TRUE(at::equal(gradient, copy));
    kept[&pass.net].emplace_back(x.grad(), x.grad().clone());
  });
  for (const auto& [net, gradients] : kept) {
    for (const auto& [gradient, copy] : gradients) EXPECT_TRUE(at::equal(gradient, copy));
  }
}

TEST_P(BirthsOf, AreRightInEveryOrderOfLayers) {
  run_replicas("farandole", world_size(), [&](const Group& group) {
    Sequential net = square_net();
    DistributedDataParallel ddp(net, group);
    std::vector<std::pair<at::Tensor, at::Tensor>> kept;
    for (int step = 0; step < 20; ++step) {
      zero_gradients(ddp.parameters());
      // The weights' gradients are computed elsewhere in every step, the inputs' in between.
      at::Tensor x = square_batch(step).requires_grad_(step % 3 == 0);
      at::Tensor y = ddp.forward(x);
      if (step % 2 == 1) y = y.matmul(y.t().detach());
      if (step % 5 == 1) y = y * 2;
      y.sum().backward();
      Sequential plain = square_net();
      at::Tensor plain_x = square_batch(step).requires_grad_(step % 3 == 0);
      at::Tensor plain_y = plain->forward(plain_x);
      if (step % 2 == 1) plain_y = plain_y.matmul(plain_y.t().detach());
      if (step % 5 == 1) plain_y = plain_y * 2;
      plain_y.sum().backward();
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()),
                       "in step " + std::to_string(step));
      if (x.grad().defined()) kept.emplace_back(x.grad(), plain_x.grad());
    }
    for (const auto& [gradient, expected] : kept) EXPECT_TRUE(at::equal(gradient, expected));
  });
}

TEST_P(BirthsOf, AreRightWithGraphsOfTheirOwn) {
  expect_exact(square_net, [](const auto& pass) {
    pass.forward(square_batch(pass.rank))
        .sum()
        .backward({}, /*retain_graph=*/true,
                  /*create_graph=*/pass.step % 2 == 1);
    for (const at::Tensor& parameter : pass.net->parameters()) {
      parameter.mutable_grad() = parameter.grad().detach();
    }
  });
}

/// Weights whose elements lie in another order than their gradients are computed in.
TEST_P(BirthsOf, AreRightInTransposedWeights) {
  const auto transposed_net = [] {
    Sequential net = square_net();
    const c10::NoGradGuard no_grad;
    for (auto& parameter : net->parameters()) {
      if (parameter.dim() == 2) parameter.set_data(parameter.t().contiguous().t());
    }
    return net;
  };
  expect_exact(transposed_net, [](const auto& pass) {
    pass.forward(square_batch(10 * pass.step + pass.rank)).sum().backward();
  });
}

TEST_P(BirthsOf, OfTwoReplicasInOneBackwardAreRight) {
  run_replicas("farandole", world_size(), [&](const Group& group) {
    DistributedDataParallel first(square_net(), group);
    DistributedDataParallel second(square_net(), group);
    for (int step = 0; step < 5; ++step) {
      zero_gradients(first.parameters());
      zero_gradients(second.parameters());
      second.forward(first.forward(square_batch(step))).sum().backward();
      Sequential plain = square_net();
      Sequential plain_second = square_net();
      plain_second->forward(plain->forward(square_batch(step))).sum().backward();
      expect_gradients(first.parameters(), gradients_of(plain->parameters()), "first");
      expect_gradients(second.parameters(), gradients_of(plain_second->parameters()), "second");
    }
  });
}

TEST_P(BirthsOf, OutliveReplicaAndGroup) {
  std::mutex mutex;
  std::vector<std::pair<at::Tensor, at::Tensor>> kept;
  run_replicas("farandole", world_size(), [&](const Group& group) {
    Sequential net = square_net();
    DistributedDataParallel ddp(net, group);
    for (int step = 0; step < 3; ++step) {
      zero_gradients(ddp.parameters());
      auto hook = net->parameters()[0].register_hook([&](const at::Tensor& gradient) {
        const std::lock_guard<std::mutex> lock(mutex);
        kept.emplace_back(gradient, gradient.clone());
      });
      ddp.forward(square_batch(step)).sum().backward();
      net->parameters()[0].remove_hook(hook);
    }
  });
  for (const auto& [gradient, copy] : kept) EXPECT_TRUE(at::equal(gradient, copy));
}

}  // namespace
}  // namespace farandole::test
