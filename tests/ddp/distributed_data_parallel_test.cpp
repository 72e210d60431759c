// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/distributed_data_parallel.h"

#include <gmock/gmock.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/rnn.h>
#include <torch/nn/modules/transformerlayer.h>

#include <cmath>

#include "ddp/training.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/ddp/hooks/compress_hook.h"
#include "farandole/ddp/hooks/power_sgd_hook.h"
#include "farandole/ddp/hooks/top_k_hook.h"
#include "farandole/error.h"
#include "support/raised.h"

namespace farandole::test {
namespace {

using torch::nn::BatchNorm1d;
using torch::nn::BatchNorm2d;
using torch::nn::Conv2d;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

class DdpOver : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Backends, DdpOver, testing::Values("farandole", "foreign"),
                         [](const auto& param) { return param.param; });

/// Tenths, whose sums are rounded.
at::Tensor tenths(at::IntArrayRef sizes, int64_t seed) { return integers(sizes, seed) * 0.1; }

template <class Module>
void fill_with_tenths(Module& module) {
  const c10::NoGradGuard no_grad;
  int64_t seed = 0;
  for (auto& parameter : module.parameters()) parameter.copy_(tenths(parameter.sizes(), ++seed));
}

// --- architectures. Gradients of two ranks are rounded once, in any order: bits are equal.

struct Images : torch::nn::Module {
  Images() {
    net = register_module("net", Sequential(Conv2d(3, 4, 3), BatchNorm2d(4), ReLU(),
                                            Conv2d(torch::nn::Conv2dOptions(4, 2, 3).bias(false))));
    fill_with_tenths(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return net->forward(x); }
  Sequential net{nullptr};
};

struct Speech : torch::nn::Module {
  Speech() {
    rnn = register_module("rnn", torch::nn::LSTM(torch::nn::LSTMOptions(4, 5).num_layers(2)));
    head = register_module("head", Linear(5, 2));
    fill_with_tenths(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return head(std::get<0>(rnn->forward(x))); }
  torch::nn::LSTM rnn{nullptr};
  Linear head{nullptr};
};

struct Text : torch::nn::Module {
  Text() {
    using torch::nn::TransformerEncoderLayerOptions;
    layer = register_module(
        "layer", torch::nn::TransformerEncoderLayer(
                     TransformerEncoderLayerOptions(4, 2).dim_feedforward(8).dropout(0)));
    fill_with_tenths(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  torch::nn::TransformerEncoderLayer layer{nullptr};
};

/// Rows go to an expert each; which, depends on the input.
struct Mixture : torch::nn::Module {
  Mixture() {
    gate = register_module("gate", Linear(4, 3));
    for (int i = 0; i < 3; ++i) {
      experts.push_back(register_module("expert" + std::to_string(i), Linear(4, 4)));
    }
    fill_with_tenths(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor scores = gate(x);
    const at::Tensor choice = scores.argmax(1);
    at::Tensor sum = scores.sum();
    for (int64_t i = 0; i < 3; ++i) {
      const at::Tensor rows = x.index({choice == i});
      if (rows.size(0) != 0) sum = sum + experts[static_cast<size_t>(i)](rows).pow(2).sum();
    }
    return sum;
  }
  Linear gate{nullptr};
  std::vector<Linear> experts;
};

TEST_P(DdpOver, TrainsConvolutionsWithBatchNorm) {
  expect_as_one_process(
      GetParam(), 2, [] { return std::make_shared<Images>(); },
      [](const auto& pass) {
        pass.forward(tenths({2, 3, 6, 6}, 10 * pass.step + pass.rank)).pow(2).sum().backward();
      });
}

TEST_P(DdpOver, TrainsAnLstm) {
  expect_as_one_process(
      GetParam(), 2, [] { return std::make_shared<Speech>(); },
      [](const auto& pass) {
        pass.forward(tenths({3, 2, 4}, 10 * pass.step + pass.rank)).pow(2).sum().backward();
      });
}

TEST_P(DdpOver, TrainsATransformerLayer) {
  expect_as_one_process(
      GetParam(), 2, [] { return std::make_shared<Text>(); },
      [](const auto& pass) {
        pass.forward(tenths({3, 2, 4}, 10 * pass.step + pass.rank)).pow(3).sum().backward();
      });
}

TEST_P(DdpOver, TrainsAMixtureOfExperts) {
  ReplicaOptions options;
  options.find_unused_parameters = true;
  expect_as_one_process(
      GetParam(), 2, [] { return std::make_shared<Mixture>(); },
      [](const auto& pass) {
        pass.forward(tenths({2, 4}, 10 * pass.step + pass.rank)).backward();
      },
      options);
}

// --- what holds the module

struct NetImpl : torch::nn::Module {
  NetImpl() {
    layer = register_module("layer", Linear(4, 2));
    fill_with_integers(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  Linear layer{nullptr};
};
TORCH_MODULE(Net);

struct Output {
  at::Tensor logits;
};
void append_tensors(const Output& output, std::vector<at::Tensor>& tensors) {
  tensors.push_back(output.logits);
}
struct OwnOutput : NetImpl {
  Output forward(const at::Tensor& x) { return {layer(x)}; }
};

template <class Ddp, class Loss>
void expect_average(Ddp& ddp, const Group& group, const Loss& loss) {
  for (int step = 0; step < 2; ++step) {
    zero_gradients(ddp.parameters());
    loss(integers({6, 4}, 1000 * step + group->getRank())).backward();
    expect_gradients(ddp.parameters(),
                     oracle(
                         group->getSize(), step, [] { return std::make_shared<NetImpl>(); },
                         [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); }),
                     "average");
  }
}

TEST_P(DdpOver, TakesWhateverHoldsAModule) {
  run_replicas(GetParam(), 2, [](const Group& group) {
    DistributedDataParallel shared(std::make_shared<NetImpl>(), group);
    expect_average(shared, group, [&](const at::Tensor& x) { return shared(x).sum(); });
    DistributedDataParallel holder(Net(), group);
    expect_average(holder, group, [&](const at::Tensor& x) { return holder->forward(x).sum(); });
    DistributedDataParallel any(torch::nn::AnyModule(Net()), group);
    expect_average(any, group, [&](const at::Tensor& x) { return any.forward(x).sum(); });
    DistributedDataParallel own(std::make_shared<OwnOutput>(), group);
    expect_average(own, group, [&](const at::Tensor& x) { return own.forward(x).logits.sum(); });
  });
}

TEST_P(DdpOver, SendsRankZerosStateToAll) {
  run_replicas(GetParam(), 2, [](const Group& group) {
    Sequential net(Linear(4, 4), BatchNorm1d(4));
    const c10::NoGradGuard no_grad;
    for (auto& tensor : net->parameters()) tensor.fill_(1 + group->getRank());
    for (auto& tensor : net->buffers()) tensor.fill_(3 + group->getRank());
    const DistributedDataParallel ddp(net, group);
    for (const auto& tensor : net->parameters()) EXPECT_TRUE(tensor.eq(1).all().item<bool>());
    for (const auto& tensor : net->buffers()) EXPECT_TRUE(tensor.eq(3).all().item<bool>());
  });
}

// --- training

void descend(const std::vector<at::Tensor>& parameters) {
  const c10::NoGradGuard no_grad;
  for (at::Tensor parameter : parameters) parameter.sub_(parameter.grad(), 0.01);
}

Sequential rounding_net() {
  Sequential net(Linear(4, 30), ReLU(), Linear(30, 20), ReLU(), Linear(20, 2));
  fill_with_tenths(*net);
  return net;
}

/// What rank 0 has after five steps.
std::vector<at::Tensor> trained(const std::string& backend, double cap) {
  std::vector<at::Tensor> result;
  run_replicas(backend, 4, [&](const Group& group) {
    ReplicaOptions options;
    options.bucket_cap_mb = cap;
    DistributedDataParallel ddp(rounding_net(), group, options);
    for (int step = 0; step < 5; ++step) {
      zero_gradients(ddp.parameters());
      ddp.forward(tenths({6, 4}, 10 * step + group->getRank())).pow(2).mean().backward();
      descend(ddp.parameters());
    }
    if (group->getRank() == 0) result = ddp.parameters();
  });
  return result;
}

TEST_P(DdpOver, BitsDoNotDependOnBuckets) {
  const std::vector<at::Tensor> expected = trained(GetParam(), 1);
  for (const double cap : {1e-6, 1e-4, 1e-3, 1e-2}) {
    const std::vector<at::Tensor> parameters = trained(GetParam(), cap);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(at::equal(parameters[i], expected[i])) << i << " with " << cap;
    }
  }
}

TEST_P(DdpOver, AddsWeighedGradientsToZerosAlone) {
  run_replicas(GetParam(), 2, [](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    const std::vector<double> weights = {1, 3};
    const auto batch = [](int rank) { return integers({6, 4}, rank); };
    for (int step = 0; step < 3; ++step) {
      for (auto& parameter : ddp.parameters()) {
        if (parameter.grad().defined()) parameter.mutable_grad().zero_();
      }
      ddp.set_loss_weight(weights[static_cast<size_t>(group->getRank())]);
      ddp.forward(batch(group->getRank())).sum().backward();
      Sequential plain = small_net();
      for (int rank = 0; rank < 2; ++rank) {
        (plain->forward(batch(rank)).sum() * (weights[static_cast<size_t>(rank)] / 4)).backward();
      }
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()), "weighed");
    }
  });
}

Sequential normed_net() {
  Sequential net(Linear(4, 4), BatchNorm1d(4), Linear(4, 2));
  fill_with_tenths(*net);
  return net;
}

/// A training in one process: in each step the ranks that have a batch left take part, and the
/// lowest one's buffers stay.
Sequential trained_with_uneven_inputs(const std::vector<int>& batches) {
  Sequential net = normed_net();
  const int steps = *std::max_element(batches.begin(), batches.end());
  for (int step = 0; step < steps; ++step) {
    std::vector<at::Tensor> sums;
    std::vector<at::Tensor> before;
    std::vector<at::Tensor> buffers;
    int ranks = 0;
    for (const at::Tensor& buffer : net->buffers()) before.push_back(buffer.clone());
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      if (batches[rank] <= step) continue;
      for (size_t i = 0; i < before.size(); ++i) net->buffers()[i].copy_(before[i]);
      zero_gradients(net->parameters());
      const at::Tensor batch = tenths({6, 4}, 10 * step + static_cast<int64_t>(rank));
      net->forward(batch).pow(2).sum().backward();
      const std::vector<at::Tensor> gradients = gradients_of(net->parameters());
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (ranks == 0) sums.push_back(gradients[i]);
        if (ranks != 0) sums[i] += gradients[i];
      }
      if (ranks++ != 0) continue;
      for (const at::Tensor& buffer : net->buffers()) buffers.push_back(buffer.clone());
    }
    for (size_t i = 0; i < buffers.size(); ++i) net->buffers()[i].copy_(buffers[i]);
    for (size_t i = 0; i < sums.size(); ++i) net->parameters()[i].mutable_grad() = sums[i] / ranks;
    descend(net->parameters());
  }
  return net;
}

TEST_P(DdpOver, RanksMayHaveUnevenInputs) {
  const std::vector<std::vector<int>> cases = {{3, 5, 2}, {5, 3, 2}, {2, 2, 2}, {0, 1, 3}};
  for (const std::vector<int>& batches : cases) {
    const Sequential expected = trained_with_uneven_inputs(batches);
    run_replicas(GetParam(), 3, [&](const Group& group) {
      DistributedDataParallel ddp(normed_net(), group);
      const auto rank = static_cast<size_t>(group->getRank());
      for (int step = 0; step < batches[rank]; ++step) {
        zero_gradients(ddp.parameters());
        const at::Tensor batch = tenths({6, 4}, 10 * step + group->getRank());
        ddp.forward(batch).pow(2).sum().backward();
        descend(ddp.parameters());
      }
      ddp.join([&] { descend(ddp.parameters()); });
      const auto parameters = ddp.parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        EXPECT_TRUE(at::allclose(parameters[i], expected->parameters()[i], 1e-5, 1e-6))
            << "parameter " << i << " of rank " << rank;
      }
      const auto buffers = ddp.module()->buffers();
      for (size_t i = 0; i < buffers.size(); ++i) {
        EXPECT_TRUE(at::allclose(buffers[i], expected->buffers()[i], 1e-5, 1e-6))
            << "buffer " << i << " of rank " << rank;
      }
      // And on: the next epoch.
      zero_gradients(ddp.parameters());
      ddp.forward(integers({6, 4}, group->getRank())).pow(2).sum().backward();
    });
  }
}

TEST_P(DdpOver, GoesOnWithFewerRanks) {
  run_replicas("farandole", 3, [](const Group& group) {
    const auto body = [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); };
    DistributedDataParallel ddp(small_net(), group);
    const auto step = [&](int number) {
      zero_gradients(ddp.parameters());
      ddp.forward(integers({6, 4}, 1000 * number + group->getRank())).sum().backward();
    };
    step(0);
    step(1);
    if (group->getRank() == 2) return;
    if (GetParam() == "foreign") {  // in the middle of a backward that cannot end
      EXPECT_THROW(step(2), CommError);
    }
    const auto rest = ProcessGroupFarandole::of(*group)->shrink({2});
    const Group pair = group_around(rest);
    ddp.set_process_group(pair);
    for (int number = 3; number < 6; ++number) expect_step(ddp, pair, number, small_net, body);
  });
}

// --- hooks

/// Doubles what the ranks agree on.
class DoublingHook : public AllReduceHook {
 public:
  using AllReduceHook::AllReduceHook;
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    bucket.getBufferRef().mul_(2);
    ++calls;
    return AllReduceHook::runHook(bucket);
  }
  void begin_plan() override { ++plans; }
  int calls = 0;
  int plans = 0;
};

/// Its result reads what the last backward was like, on the thread of the collective: rank 1 begins
/// its own only when rank 0 has asked for that.
class AskingHook : public AllReduceHook {
 public:
  AskingHook(const Group& group, DistributedDataParallel<torch::nn::Sequential>& ddp,
             std::atomic<int>& asked)
      : AllReduceHook(group), rank_(group->getRank()), ddp_(ddp), asked_(asked) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const int number = ++calls_;
    while (rank_ == 1 && asked_ < number) std::this_thread::yield();
    const auto mean = AllReduceHook::runHook(bucket);
    const auto result = mean->then(
        [this](c10::ivalue::Future& done) {
          ddp_.stats();
          ++answers;
          return done.value();
        },
        mean->elementType());
    if (rank_ == 0) ++asked_;
    return result;
  }
  std::atomic<int> answers{0};

 private:
  const int rank_;
  DistributedDataParallel<torch::nn::Sequential>& ddp_;
  std::atomic<int>& asked_;
  int calls_ = 0;
};

TEST(DistributedDataParallel, AnswersAHookOnTheThreadOfACollective) {
  std::atomic<int> asked{0};
  run_replicas("farandole", 2, [&asked](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    const auto hook = std::make_shared<AskingHook>(group, ddp, asked);
    ddp.register_comm_hook(hook);
    ddp.forward(integers({6, 4}, group->getRank())).sum().backward();
    EXPECT_GT(hook->answers, 0);
  });
}

TEST_P(DdpOver, TellsAHookOfEachNewPlan) {
  run_replicas(GetParam(), 2, [](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    const auto hook = std::make_shared<DoublingHook>(group);
    ddp.register_comm_hook(hook);
    const auto plans_after_steps = [&] {
      for (int step = 0; step < 3; ++step) {
        zero_gradients(ddp.parameters());
        ddp.forward(integers({6, 4}, group->getRank())).sum().backward();
      }
      return hook->plans;
    };
    EXPECT_EQ(plans_after_steps(), 1);
    ddp.parameters()[0].set_requires_grad(false);
    EXPECT_EQ(plans_after_steps(), 2);
    ddp.parameters()[0].set_requires_grad(true);
    EXPECT_EQ(plans_after_steps(), 3);
  });
}

TEST_P(DdpOver, GivesBucketsToAHook) {
  run_replicas(GetParam(), 2, [](const Group& group) {
    ReplicaOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel ddp(small_net(), group, options);
    const auto hook = std::make_shared<DoublingHook>(group);
    ddp.register_comm_hook(hook);
    for (int step = 0; step < 3; ++step) {
      zero_gradients(ddp.parameters());
      ddp.forward(integers({6, 4}, 1000 * step + group->getRank())).sum().backward();
      expect_gradients(
          ddp.parameters(),
          oracle(2, step, small_net,
                 [](const auto& pass) { (pass.forward(pass.batch()).sum() * 2).backward(); }),
          "doubled");
    }
    EXPECT_EQ(hook->calls, 3 * static_cast<int>(ddp.replica().plan().buckets.size()));
  });
}

TEST_P(DdpOver, WorksWithFarandolesHooks) {
  const auto hooks = [](const Group& group) {
    return std::vector<std::shared_ptr<c10d::CommHookInterface>>{
        std::make_shared<AllReduceHook>(group), std::make_shared<CompressHook>(group),
        std::make_shared<TopKHook>(group), std::make_shared<PowerSgdHook>(group)};
  };
  run_replicas("farandole", 2, [&](const Group& group) {
    for (const auto& hook : hooks(group)) {
      DistributedDataParallel ddp(rounding_net(), group);
      ddp.register_comm_hook(hook);
      for (int step = 0; step < 4; ++step) {
        zero_gradients(ddp.parameters());
        ddp.forward(tenths({6, 4}, 10 * step + group->getRank())).pow(2).mean().backward();
        descend(ddp.parameters());
      }
      for (const at::Tensor& parameter : ddp.parameters()) {
        std::vector<at::Tensor> theirs{parameter.detach().clone()};
        group->broadcast(theirs)->wait();
        EXPECT_TRUE(at::equal(theirs[0], parameter));
      }
    }
  });
}

// --- gradients with Inf and NaN.

TEST_P(DdpOver, NamesTheFirstNanOnEveryRank) {
  ReplicaOptions options;
  options.report_nonfinite = NonfinitePolicy::kRaise;
  run_replicas(GetParam(), 2, [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group, options);
    for (int step = 0; step < 4; ++step) {
      const at::Tensor output = ddp.forward(integers({6, 4}, step));
      const double odd = group->getRank() == 1 ? std::nan("") : 1;
      const std::string text = raised<BackwardError>([&] { (output.sum() * odd).backward(); });
      EXPECT_THAT(text, testing::HasSubstr("the first of '2.bias' (bucket 0) on rank 1."));
      for (const at::Tensor& parameter : ddp.parameters()) EXPECT_FALSE(parameter.grad().defined());
      expect_step(ddp, group, step, small_net,
                  [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); });
    }
  });
}

TEST_P(DdpOver, LeavesBatchesWithNanOut) {
  ReplicaOptions options;
  options.report_nonfinite = NonfinitePolicy::kSkip;
  run_replicas(GetParam(), 2, [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group, options);
    for (int step = 0; step < 3; ++step) {
      const double odd = group->getRank() == 0 ? HUGE_VAL : 1;
      (ddp.forward(integers({6, 4}, step)).sum() * odd).backward();
      EXPECT_TRUE(ddp.replica().reducer()->has_dropped_gradients());
      for (const at::Tensor& parameter : ddp.parameters()) EXPECT_FALSE(parameter.grad().defined());
    }
  });
}

}  // namespace
}  // namespace farandole::test
