// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/reducer.h"

#include <ATen/ops/full.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros_like.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "ddp/finite_check.h"
#include "ddp/training.h"
#include "farandole/error.h"

namespace farandole::test {
namespace {

using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

class ReducerOf : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }

  /// Gradients of `body` in three steps, against those of one plain process.
  template <class Make, class Body>
  void expect_exact(const Make& make, const Body& body, const ReplicaOptions& options = {}) {
    expect_as_one_process(backend(), world_size(), make, body, options);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ReducerOf, testing::ValuesIn(backends_on({1, 2, 4})),
                         [](const auto& param) {
                           return std::get<0>(param.param) +
                                  std::to_string(std::get<1>(param.param)) + "Ranks";
                         });

ReplicaOptions finding_unused() {
  ReplicaOptions options;
  options.find_unused_parameters = true;
  return options;
}

// --- how gradients come

TEST_P(ReducerOf, AveragesTheGradientsOfEveryStep) {
  expect_exact(small_net, [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); });
}

TEST_P(ReducerOf, AddsUpLocalPassesAndAveragesInTheSynchronizedOne) {
  expect_exact(small_net, [](const auto& pass) {
    pass.locally([&] {
      for (int part = 1; part < 4; ++part) pass.forward(pass.batch(part)).sum().backward();
    });
    pass.forward(pass.batch()).sum().backward();
  });
}

TEST_P(ReducerOf, AddsToGradientsThatWereNotZeroed) {
  expect_exact(small_net, [](const auto& pass) {
    for (int part = 0; part < 3; ++part) pass.forward(pass.batch(part)).sum().backward();
  });
}

TEST_P(ReducerOf, WorksWithGradientsZeroedInPlace) {
  expect_exact(small_net, [](const auto& pass) {
    pass.forward(pass.batch(1)).sum().backward();
    for (auto& parameter : pass.net->parameters()) parameter.mutable_grad().zero_();
    pass.forward(pass.batch()).sum().backward();
  });
}

TEST_P(ReducerOf, AddsToAGradientSetByHand) {
  expect_exact(small_net, [](const auto& pass) {
    for (auto& parameter : pass.net->parameters()) {
      parameter.mutable_grad() = at::ones_like(parameter);
    }
    pass.forward(pass.batch()).sum().backward();
  });
}

TEST_P(ReducerOf, FollowsAGradientWhoseStorageWasMoved) {
  expect_exact(small_net, [](const auto& pass) {
    pass.forward(pass.batch(1)).sum().backward();
    for (auto& parameter : pass.net->parameters()) {
      parameter.mutable_grad().set_data(parameter.grad().clone());
    }
    pass.forward(pass.batch()).sum().backward();
  });
}

TEST_P(ReducerOf, KeepsAveragesInBuckets) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    for (int step = 0; step < 3; ++step) {
      zero_gradients(ddp.parameters());
      ddp.forward(integers({6, 4}, step)).sum().backward();
      const auto parameters = ddp.parameters();
      const auto buckets = ddp.replica().reducer()->buckets();
      ASSERT_NE(buckets, nullptr);
      const at::Tensor bucket = buckets->flat(0);
      for (const auto& slot : buckets->plan().buckets[0].slots) {
        const at::Tensor& gradient = parameters[slot.parameter].grad();
        EXPECT_TRUE(
            shares_memory(gradient, bucket.slice(0, slot.offset, slot.offset + gradient.numel())));
      }
    }
  });
}

// --- what a profiler sees

/// What was recorded of buckets on this thread.
thread_local std::vector<std::pair<int64_t, int64_t>> recorded;

std::unique_ptr<at::ObserverContext> note_record(const at::RecordFunction& record) {
  if (std::string(record.name()) != "farandole:bucket_reduction") return nullptr;
  const auto inputs = record.kwinputs();
  recorded.emplace_back(inputs.at("bucket").toInt(), inputs.at("bytes").toInt());
  return nullptr;
}

TEST_P(ReducerOf, RecordsItsWorkOnBuckets) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    ReplicaOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel ddp(small_net(), group, options);
    const auto step = [&] { ddp.forward(integers({6, 4}, 1)).sum().backward(); };
    step();
    recorded.clear();
    const auto handle =
        at::addThreadLocalCallback(at::RecordFunctionCallback(note_record).needsInputs(true));
    step();
    at::removeCallback(handle);
    step();
    const BucketPlan plan = ddp.replica().plan();
    const size_t records = backend() == "farandole" ? 1 : 2;  // a hook's: at start and end
    EXPECT_EQ(recorded.size(), records * plan.buckets.size());
    for (size_t bucket = 0; bucket < plan.buckets.size(); ++bucket) {
      const auto wanted =
          std::make_pair(static_cast<int64_t>(bucket), plan.buckets[bucket].bytes());
      EXPECT_EQ(std::count(recorded.begin(), recorded.end(), wanted),
                static_cast<int64_t>(records));
    }
  });
}

// --- what was seen to be finite

bool is_among(const at::Tensor& gradient, const std::vector<at::Tensor>& gradients) {
  return std::any_of(gradients.begin(), gradients.end(),
                     [&](const at::Tensor& each) { return each.is_same(gradient); });
}

TEST_P(ReducerOf, SeesAveragesWhileTheyAreMade) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    const bool sees = backend() == "farandole";
    DistributedDataParallel ddp(small_net(), group);
    const auto reducer = ddp.replica().reducer();
    const auto parameters = ddp.parameters();
    const auto step = [&](int number) {
      zero_gradients(parameters);
      at::Tensor batch = integers({6, 4}, number);
      if (number == 3 && group->getRank() == 0) batch = batch * HUGE_VAL;
      ddp.forward(batch).sum().backward();
    };
    step(0);
    EXPECT_FALSE(reducer->has_seen_averages());  // nobody has asked
    reducer->watch_finite(true);
    for (int number = 1; number < 5; ++number) {
      step(number);
      EXPECT_EQ(reducer->has_seen_averages(), sees);
      // An Inf is seen by one rank at least, which then trusts in none of its gradients.
      std::vector<at::Tensor> one{
          at::full({1}, reducer->unchecked_gradients().empty() ? 0.0 : 1.0)};
      group->allreduce(one)->wait();
      EXPECT_EQ(one[0].item<float>() > 0, sees && number == 3);
    }
    {
      const c10::NoGradGuard no_grad;
      parameters[2].mutable_grad().mul_(2);
      parameters[1].mutable_grad() = at::ones_like(parameters[1]);
    }
    const auto unseen = reducer->unchecked_gradients();
    EXPECT_EQ(unseen.size(), 2U);
    EXPECT_TRUE(is_among(parameters[1].grad(), unseen) && is_among(parameters[2].grad(), unseen));
    {
      const auto no_sync = ddp.no_sync();
      ddp.forward(integers({6, 4}, 5)).sum().backward();
    }
    EXPECT_FALSE(reducer->has_seen_averages());
    step(6);
    EXPECT_EQ(reducer->has_seen_averages(), sees);
    reducer->watch_finite(group->getRank() != 0);
    step(7);
    EXPECT_FALSE(reducer->has_seen_averages());  // not all ranks looked
  });
}

TEST_P(ReducerOf, SeesOwnGradientsAsTheyCome) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    const auto reducer = ddp.replica().reducer();
    const auto parameters = ddp.parameters();
    reducer->set_sharded(ShardedGradients{});
    const auto pass = [&](double factor) {
      (ddp.forward(integers({6, 4}, 1).abs() + 1) * factor).sum().backward();
      return reducer->unchecked_gradients().size();
    };
    EXPECT_EQ(pass(1), 4U);  // nobody has asked
    reducer->watch_finite(true);
    zero_gradients(parameters);
    EXPECT_EQ(pass(1), 0U);
    EXPECT_EQ(pass(1), 0U);  // on top of the first
    parameters[3].mutable_grad() = at::ones_like(parameters[3]);
    EXPECT_EQ(reducer->unchecked_gradients().size(), 1U);
    zero_gradients(parameters);
    // Six in a batch: the gradient of the last bias is 6 * factor.
    const auto most = static_cast<double>(std::numeric_limits<float>::max());
    const auto is_bias_unseen = [&] {
      return is_among(parameters[3].grad(), reducer->unchecked_gradients());
    };
    for (int passes = 0; passes < 2; ++passes) {
      pass(most / 64 / world_size());
      EXPECT_FALSE(is_bias_unseen());
    }
    zero_gradients(parameters);
    pass(most / 7);  // finite, but not in a sum over ranks
    EXPECT_TRUE(is_finite(parameters[3].grad()));
    EXPECT_EQ(is_bias_unseen(), world_size() > 1);
    pass(most / 7);  // nor in a sum of two passes
    EXPECT_TRUE(is_bias_unseen());
  });
}

/// One tensor under two names, used in several places.
struct Tied : torch::nn::Module {
  Tied() {
    first = register_parameter("first", integers({4, 4}, 1));
    second = register_parameter("second", first);
    bias = register_parameter("bias", integers({4}, 2));
  }
  at::Tensor forward(const at::Tensor& x) {
    return x.matmul(first).relu().matmul(second) + bias + first.sum();
  }
  at::Tensor first, second, bias;
};

TEST_P(ReducerOf, TakesTheSumOfAllUsesOfAParameter) {
  expect_exact([] { return std::make_shared<Tied>(); },
               [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); });
}

TEST_P(ReducerOf, TakesTwoForwardsAndOneBackward) {
  expect_exact(small_net, [](const auto& pass) {
    const at::Tensor first = pass.forward(pass.batch(1));
    (first.sum() + 2 * pass.forward(pass.batch()).sum()).backward();
  });
}

TEST_P(ReducerOf, TakesTwoForwardsAndTwoBackwards) {
  expect_exact(small_net, [](const auto& pass) {
    const at::Tensor first = pass.forward(pass.batch(1)).sum();
    const at::Tensor second = pass.forward(pass.batch()).sum();
    first.backward();
    second.backward();
  });
}

TEST_P(ReducerOf, TakesABackwardTwiceThroughARetainedGraph) {
  expect_exact(small_net, [](const auto& pass) {
    const at::Tensor loss = pass.forward(pass.batch()).sum();
    loss.backward({}, /*retain_graph=*/true);
    loss.backward();
  });
}

at::Tensor gradient_penalty(const at::Tensor& output, const at::Tensor& input) {
  return torch::autograd::grad({output.sum()}, {input}, {}, /*retain_graph=*/true,
                               /*create_graph=*/true)[0]
      .pow(2)
      .sum();
}

struct Smooth : torch::nn::Module {
  Smooth() {
    first = register_module("first", Linear(4, 4));
    second = register_module("second", Linear(4, 2));
    fill_with_integers(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).pow(2)); }
  Linear first{nullptr}, second{nullptr};
};
auto smooth() { return std::make_shared<Smooth>(); }

TEST_P(ReducerOf, TakesAGradientPenaltyInTheLoss) {
  expect_exact(smooth, [](const auto& pass) {
    const at::Tensor input = integers({2, 4}, pass.rank + 10 * pass.step).requires_grad_();
    const at::Tensor output = pass.forward(input);
    (output.sum() + gradient_penalty(output, input)).backward();
  });
}

TEST_P(ReducerOf, TakesABackwardOfAGradientPenaltyAlone) {
  expect_exact(
      smooth,
      [](const auto& pass) {
        const at::Tensor input = integers({2, 4}, pass.rank + 10 * pass.step).requires_grad_();
        gradient_penalty(pass.forward(input), input).backward();
      },
      finding_unused());
}

TEST_P(ReducerOf, IsNotConcernedWithGradientsOfInputsAlone) {
  expect_exact(small_net, [](const auto& pass) {
    const at::Tensor input = pass.batch().requires_grad_();
    const at::Tensor output = pass.forward(input);
    EXPECT_TRUE(torch::autograd::grad({output.sum()}, {input}, {}, true)[0].defined());
    output.sum().backward({}, true, false, std::vector<at::Tensor>{input});
    output.sum().backward();
  });
}

TEST_P(ReducerOf, TakesABackwardThatNamesItsParameters) {
  expect_exact(small_net, [](const auto& pass) {
    pass.forward(pass.batch()).sum().backward({}, false, false, pass.net->parameters());
  });
}

TEST_P(ReducerOf, AveragesValuesUnderCreateGraph) {
  expect_exact(smooth, [](const auto& pass) {
    pass.forward(integers({2, 4}, pass.rank + pass.step)).sum().backward({}, true, true);
  });
}

TEST_P(ReducerOf, TakesABackwardOfARegularizerBeforeThatOfTheOutputs) {
  expect_exact(small_net, [](const auto& pass) {
    const at::Tensor output = pass.forward(pass.batch());
    (pass.net->parameters()[0].pow(2).sum() * (pass.rank + 1)).backward();
    output.sum().backward();
  });
}

/// Has a parameter that the forward leaves to a regularizer.
struct Regularized : torch::nn::Module {
  Regularized() {
    layer = register_module("layer", Linear(4, 2));
    apart = register_parameter("apart", at::ones({5}));
    fill_with_integers(*this);
  }
  at::Tensor forward(const at::Tensor& x) { return layer(x); }
  Linear layer{nullptr};
  at::Tensor apart;
};

TEST_P(ReducerOf, TakesARegularizerOutsideOfTheForward) {
  for (const bool comes_first : {true, false}) {
    expect_exact([] { return std::make_shared<Regularized>(); },
                 [comes_first](const auto& pass) {
                   const auto penalty = [&] {
                     return pass.net->apart.pow(2).sum() + pass.net->layer->weight.sum();
                   };
                   // Nodes that were made last run first.
                   at::Tensor loss = comes_first ? at::Tensor() : penalty();
                   const at::Tensor output = pass.forward(pass.batch()).sum();
                   loss = (comes_first ? penalty() : loss) * (pass.rank + 1) + output;
                   loss.backward();
                 });
  }
}

struct ManyOutputs : torch::nn::Module {
  ManyOutputs() {
    a = register_module("a", Linear(4, 2));
    b = register_module("b", Linear(2, 2));
    fill_with_integers(*this);
  }
  using Nested = std::pair<std::vector<at::Tensor>, std::tuple<int, std::optional<at::Tensor>>>;
  Nested forward(const at::Tensor& x) {
    const at::Tensor first = a(x);
    return {{first, b(first)}, {1, x}};
  }
  Linear a{nullptr}, b{nullptr};
};

TEST_P(ReducerOf, FindsOutputsHoweverTheyAreNested) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(std::make_shared<ManyOutputs>(), group, finding_unused());
    const auto b = ddp.module()->b->weight;
    for (int step = 0; step < 3; ++step) {
      zero_gradients(ddp.parameters());
      const auto outputs = ddp.forward(integers({6, 4}, group->getRank())).first;
      outputs[static_cast<size_t>(step) % 2].sum().backward();
      EXPECT_EQ(b.grad().defined(), step % 2 == 1);
      EXPECT_EQ(ddp.stats().backward, static_cast<uint64_t>(step + 1));
    }
  });
}

TEST_P(ReducerOf, LeavesGradientsLocalThatDoNotComeThroughTheWrapper) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    const auto body = [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); };
    DistributedDataParallel ddp(small_net(), group);
    expect_step(ddp, group, 0, small_net, body);
    for (int step = 1; step < 3; ++step) {
      zero_gradients(ddp.parameters());
      const at::Tensor batch = integers({6, 4}, group->getRank());
      ddp.module()->forward(batch).sum().backward();
      Sequential plain = small_net();
      plain->forward(batch).sum().backward();
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()), "local");
    }
    expect_step(ddp, group, 3, small_net, body);
  });
}

TEST_P(ReducerOf, CallsTheProgramsHooks) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    at::Tensor weight = ddp.parameters()[0];
    int calls = 0;
    weight.register_hook([&](const at::Tensor& gradient) {
      ++calls;
      return at::zeros_like(gradient);
    });
    for (int step = 0; step < 3; ++step) {
      zero_gradients(ddp.parameters());
      ddp.forward(integers({6, 4}, step)).sum().backward();
      EXPECT_EQ(calls, step + 1);
      EXPECT_TRUE(at::equal(weight.grad(), at::zeros_like(weight)));
    }
  });
}

// --- parameters of all kinds

TEST_P(ReducerOf, FollowsFreezingAndUnfreezing) {
  const auto body = [](const auto& pass) {
    const auto parameters = pass.net->parameters();
    parameters[0].set_requires_grad(pass.step % 3 != 1);
    parameters[2].set_requires_grad(pass.step % 3 != 2);
    pass.forward(pass.batch()).sum().backward();
  };
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    for (int step = 0; step < 7; ++step) expect_step(ddp, group, step, small_net, body);
  });
}

TEST_P(ReducerOf, KeepsAPlanForEachSetOfActiveParameters) {
  const auto body = [](const auto& pass) {
    const auto parameters = pass.net->parameters();
    for (const size_t frozen : {0, 2}) {
      parameters[frozen].set_requires_grad((static_cast<size_t>(pass.step) + frozen / 2) % 2 == 0);
    }
    pass.forward(pass.batch()).sum().backward();
  };
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    for (int step = 0; step < 8; ++step) {
      expect_step(ddp, group, step, small_net, body);
      EXPECT_EQ(ddp.stats().plans, std::min<uint64_t>(static_cast<uint64_t>(step) + 1, 2));
    }
  });
}

TEST_P(ReducerOf, LeavesGradientsOfOtherPlansAsTheyAre) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    const auto parameters = ddp.parameters();
    std::vector<at::Tensor> of_step;  // of the first layer in the last even step
    for (int step = 0; step < 8; ++step) {
      const bool even = step % 2 == 0;
      parameters[0].set_requires_grad(even);
      parameters[1].set_requires_grad(even);
      if (even) zero_gradients({parameters[0], parameters[1]});
      zero_gradients({parameters[2], parameters[3]});
      ddp.forward(integers({6, 4}, step)).sum().backward();
      const auto first = gradients_of({parameters[0], parameters[1]});
      if (even) of_step = first;
      for (size_t i = 0; i < 2; ++i) EXPECT_TRUE(at::equal(first[i], of_step[i]));
    }
    EXPECT_EQ(ddp.stats().plans, 2U);
  });
}

TEST_P(ReducerOf, WeighsLocalPassesOfAModuleConvertedBeforeThem) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    ddp.forward(integers({6, 4}, 0)).sum().backward();
    ddp.module()->to(at::kDouble);
    zero_gradients(ddp.parameters());
    const at::Tensor batch = integers({6, 4}, 1).to(at::kDouble);
    ddp.set_loss_weight(3);
    {
      const auto no_sync = ddp.no_sync();
      ddp.forward(batch).sum().backward();
    }
    ddp.set_loss_weight(1);
    ddp.forward(batch * 2).sum().backward();
    Sequential plain = small_net();
    plain->to(at::kDouble);
    (plain->forward(batch).sum() * 0.75).backward();
    (plain->forward(batch * 2).sum() * 0.25).backward();
    expect_gradients(ddp.parameters(), gradients_of(plain->parameters()), "weighed");
  });
}

TEST_P(ReducerOf, LeavesFrozenParametersAlone) {
  const auto make = [] {
    Sequential net = small_net();
    net->parameters()[1].set_requires_grad(false);
    return net;
  };
  expect_exact(make, [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); });
}

TEST_P(ReducerOf, FollowsAModuleThatIsConverted) {
  for (const at::ScalarType dtype : {at::kDouble, at::kBFloat16, at::kHalf}) {
    run_replicas(backend(), world_size(), [&](const Group& group) {
      const auto make = [&] {
        Sequential net(Linear(4, 2));
        fill_with_integers(*net);
        net->to(dtype);
        return net;
      };
      const auto body = [&](const auto& pass) {
        pass.locally([&] { pass.forward(pass.batch(1).to(dtype)).sum().backward(); });
        pass.forward(pass.batch().to(dtype)).sum().backward();
      };
      Sequential net(Linear(4, 2));
      fill_with_integers(*net);
      DistributedDataParallel ddp(net, group);
      for (int step = 0; step < 2; ++step) ddp.forward(integers({6, 4}, step)).sum().backward();
      ddp.module()->to(dtype);
      for (int step = 0; step < 3; ++step) expect_step(ddp, group, step, make, body);
    });
  }
}

/// Parameters of several dtypes and layouts, each used in the forward.
struct Mixed : torch::nn::Module {
  Mixed() {
    const at::Tensor image = integers({2, 3, 2, 2}, 1);
    const std::vector<at::Tensor> all = {
        integers({3, 4}, 2),
        integers({3, 4}, 3).to(at::kDouble),
        integers({5}, 4).to(at::kHalf),
        integers({5}, 5).to(at::kBFloat16),
        integers({3}, 6).to(at::kComplexFloat),
        integers({3}, 7).to(at::kComplexDouble),
        image.contiguous(at::MemoryFormat::ChannelsLast),
        integers({4, 3}, 8).t(),
        integers({3, 2, 4}, 9).transpose(0, 1),
        integers({6, 2}, 10).slice(1, 0, 1),
        integers({0, 3}, 11),
        integers({}, 12),
        integers({0}, 13).to(at::kDouble),
    };
    for (size_t i = 0; i < all.size(); ++i) {
      register_parameter("p" + std::to_string(i), all[i]);
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor sum = x.sum().to(at::kDouble);
    for (const at::Tensor& parameter : parameters()) {
      const at::Tensor factors = integers(parameter.sizes(), x.numel()) * x.flatten()[0];
      at::Tensor part = (parameter * factors.to(parameter.scalar_type())).sum();
      if (part.is_complex()) part = at::real(part) + 2 * at::imag(part);
      sum = sum + part.to(at::kDouble);
    }
    return sum;
  }
};

TEST_P(ReducerOf, TakesEveryDtypeAndLayout) {
  for (const double cap : {1e-5, 1.0}) {
    ReplicaOptions options;
    options.bucket_cap_mb = cap;
    expect_exact([] { return std::make_shared<Mixed>(); },
                 [](const auto& pass) {
                   pass.locally([&] { pass.forward(pass.batch(1)).backward(); });
                   pass.forward(pass.batch()).backward();
                   for (const at::Tensor& parameter : pass.net->parameters()) {
                     EXPECT_EQ(parameter.grad().scalar_type(), parameter.scalar_type());
                   }
                 },
                 options);
  }
}

TEST_P(ReducerOf, TakesAModuleOfEmptyParametersAlone) {
  struct Empty : torch::nn::Module {
    Empty() { nothing = register_parameter("nothing", at::empty({0, 3})); }
    at::Tensor forward(const at::Tensor& x) { return x.sum() + nothing.sum(); }
    at::Tensor nothing;
  };
  expect_exact([] { return std::make_shared<Empty>(); },
               [](const auto& pass) { pass.forward(pass.batch()).backward(); });
}

struct Words : torch::nn::Module {
  explicit Words(bool sparse) {
    using torch::nn::EmbeddingOptions;
    words = register_module("words", torch::nn::Embedding(EmbeddingOptions(20, 4).sparse(sparse)));
    layer = register_module("layer", Linear(4, 2));
    fill_with_integers(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (is_silent) return layer(x).sum();
    return layer(words(x.abs().to(at::kLong).flatten())).sum();
  }
  bool is_silent = false;
  torch::nn::Embedding words{nullptr};
  Linear layer{nullptr};
};

TEST_P(ReducerOf, AveragesSparseGradientsOfEmbeddings) {
  expect_exact([] { return std::make_shared<Words>(true); },
               [](const auto& pass) {
                 pass.locally([&] { pass.forward(pass.batch(1) + pass.rank).backward(); });
                 pass.forward(pass.batch() + pass.rank).backward();
                 EXPECT_TRUE(pass.net->words->weight.grad().is_sparse());
               });
}

TEST_P(ReducerOf, LaysOutSparseGradientsThatNobodyAnnounced) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    const auto make = [] { return std::make_shared<Words>(true); };
    auto net = make();
    NamedTensors parameters = named_parameters_of(*net);
    Replica replica(parameters, {}, group, {});
    const auto body = [](const auto& pass) { pass.forward(pass.batch()).backward(); };
    for (int step = 0; step < 3; ++step) {
      zero_gradients(net->parameters());
      replica.before_forward();
      const at::Tensor loss = net->forward(integers({6, 4}, 1000 * step + group->getRank()));
      replica.after_forward({loss});
      loss.backward();
      expect_gradients(net->parameters(), oracle(group->getSize(), step, make, body), "sparse");
      EXPECT_FALSE(net->words->weight.grad().is_sparse());
    }
  });
}

TEST_P(ReducerOf, TakesAMissingSparseGradientForZero) {
  expect_exact([] { return std::make_shared<Words>(true); },
               [](const auto& pass) {
                 pass.net->is_silent = pass.step < 2 && (pass.rank + pass.step) % 2 == 0;
                 pass.forward(pass.batch()).backward();
               },
               finding_unused());
}

TEST_P(ReducerOf, AddsNothingSparseForARankWithoutInputs) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    const auto make = [] { return std::make_shared<Words>(true); };
    DistributedDataParallel ddp(make(), group);
    ddp.forward(integers({6, 4}, group->getRank())).backward();
    if (group->getRank() == 0) {
      zero_gradients(ddp.parameters());
      ddp.forward(integers({6, 4}, 1000)).backward();
    } else {
      EXPECT_TRUE(ddp.replica().join_backward());
    }
    const auto alone =
        oracle(1, 1, make, [](const auto& pass) { pass.forward(pass.batch()).backward(); });
    expect_gradients(ddp.parameters(), alone, "of rank 0");
  });
}

TEST_P(ReducerOf, BeginsTheEpochAfterAJoinWithoutGradients) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    for (const bool sparse : {false, true}) {
      const auto make = [sparse] { return std::make_shared<Words>(sparse); };
      DistributedDataParallel ddp(make(), group);
      const int last = group->getSize() - 1;
      const auto is_without_gradients = [&] {
        const auto parameters = ddp.parameters();
        return std::none_of(parameters.begin(), parameters.end(),
                            [](const at::Tensor& each) { return each.grad().defined(); });
      };
      for (int step = 0; step < (group->getRank() == last ? 2 : 1); ++step) {
        ddp.forward(integers({6, 4}, group->getRank())).backward();
        for (const at::Tensor& each : ddp.parameters()) each.mutable_grad() = at::Tensor();
      }
      int steps = 0;
      ddp.join([&] {
        ++steps;
        EXPECT_FALSE(is_without_gradients());  // for an optimizer
      });
      EXPECT_EQ(steps, group->getRank() == last ? 0 : 1);
      EXPECT_TRUE(is_without_gradients());
      ddp.forward(integers({6, 4}, group->getRank())).backward();
      const auto alone = oracle(group->getSize(), 0, make,
                                [](const auto& pass) { pass.forward(pass.batch()).backward(); });
      expect_gradients(ddp.parameters(), alone, sparse ? "sparse" : "dense");
    }
  });
}

TEST_P(ReducerOf, LeavesOutTheStepOfABackwardThatARankLeftAfterAJoin) {
  if (world_size() == 1) return;  // nobody is left
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(std::make_shared<Words>(false), group);
    const int last = group->getSize() - 1;
    const auto batch = integers({6, 4}, group->getRank());
    int failed = 0;
    for (int step = 0; step < (group->getRank() == last ? 1 : 3); ++step) {
      zero_gradients(ddp.parameters());
      const at::Tensor loss = ddp.forward(batch);
      const bool leaves = step == 1 && group->getRank() == 0;
      if (leaves) loss.register_hook([](const at::Tensor&) { throw std::runtime_error("lost"); });
      try {
        loss.backward();
      } catch (const std::exception& error) {
        EXPECT_EQ(step, 1);
        EXPECT_THAT(error.what(), testing::HasSubstr(leaves ? "lost" : "rank 0"));
        ++failed;
      }
    }
    EXPECT_EQ(failed, group->getRank() == last ? 0 : 1);
    int steps = 0;
    ddp.join([&] { ++steps; });
    EXPECT_EQ(steps, group->getRank() == last ? 1 : 0);
  });
}

// --- an inner backward within a backward

using Block = std::function<at::Tensor(const at::Tensor&)>;

/// Reentrant checkpointing as torch.utils.checkpoint has it: backward computes the block again.
struct Checkpoint : torch::autograd::Function<Checkpoint> {
  using Context = torch::autograd::AutogradContext;
  static at::Tensor forward(Context* context, const at::Tensor& input, const Block* block) {
    context->save_for_backward({input});
    context->saved_data["block"] = reinterpret_cast<int64_t>(block);
    return (*block)(input);
  }
  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto* block = reinterpret_cast<const Block*>(context->saved_data["block"].toInt());
    const c10::AutoGradMode on(true);
    const at::Tensor input = context->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({(*block)(input)}, {gradients[0]});
    return {input.grad(), at::Tensor()};
  }
};

TEST_P(ReducerOf, TakesACheckpointedRegularizerOutsideOfTheForward) {
  expect_exact([] { return std::make_shared<Regularized>(); },
               [](const auto& pass) {
                 const Block penalty = [&](const at::Tensor& x) { return x * pass.net->apart; };
                 const at::Tensor output = pass.forward(pass.batch()).sum();
                 const at::Tensor ones = at::ones({5}).requires_grad_();
                 // Its node was made last and runs first.
                 (output + Checkpoint::apply(ones, &penalty).sum()).backward();
               });
}

/// Blocks of which some are checkpointed; blocks 1 and 3 share their layer.
struct Blocks : torch::nn::Module {
  explicit Blocks(std::set<int> which) : checkpointed(std::move(which)) {
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Linear(4, 4)));
    }
    fill_with_integers(*this);
    for (const int layer : {0, 1, 2, 1}) {
      blocks.emplace_back([this, layer](const at::Tensor& x) {
        return layers[static_cast<size_t>(layer)](x).relu();
      });
    }
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = x;
    for (int i = 0; i < 4; ++i) {
      const Block& block = blocks[static_cast<size_t>(i)];
      y = checkpointed.count(i) != 0 ? Checkpoint::apply(y, &block) : block(y);
    }
    return y;
  }
  std::set<int> checkpointed;
  std::vector<Linear> layers;
  std::vector<Block> blocks;
};

TEST_P(ReducerOf, TakesInnerBackwardPasses) {
  const std::vector<std::set<int>> cases = {{1}, {3}, {1, 3}, {0, 1, 2, 3}, {2, 3}};
  for (const auto& checkpointed : cases) {
    for (const double cap : {1e-5, 1.0}) {
      ReplicaOptions options;
      options.bucket_cap_mb = cap;
      expect_exact(
          [&] { return std::make_shared<Blocks>(checkpointed); },
          [](const auto& pass) {
            const at::Tensor input = integers({2, 4}, pass.rank + 10 * pass.step).requires_grad_();
            pass.forward(input).sum().backward();
          },
          options);
    }
  }
}

TEST_P(ReducerOf, NamesGradientsThatComeAfterTheirBucketWasLaunched) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    const auto make = [](const std::set<int>& checkpointed) {
      return std::make_shared<Blocks>(checkpointed);
    };
    const auto body = [](const auto& pass) {
      pass.forward(integers({2, 4}, pass.rank + pass.step).requires_grad_()).sum().backward();
    };
    ReplicaOptions options;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel ddp(make({}), group, options);
    for (int step = 0; step < 2; ++step) {
      expect_step(
          ddp, group, step, [&] { return make({}); }, body);
    }
    // Block 3 brings the first gradient of layer 1, block 1 the second.
    if (group->getRank() == 0) ddp.module()->checkpointed = {1, 3};
    const std::string error = error_of<BackwardError>([&] {
      ddp.forward(integers({2, 4}, 1).requires_grad_()).sum().backward();
    });
    EXPECT_NE(error.find("'layer1.weight' on rank 0"), std::string::npos) << error;
    for (int step = 2; step < 4; ++step) {
      expect_step(
          ddp, group, step,
          [&] {
            return make({1, 3});
          },
          body);
    }
  });
}

TEST_P(ReducerOf, TakesAForwardWithinACheckpoint) {
  expect_exact(small_net, [](const auto& pass) {
    const Block block = pass.forward;
    Checkpoint::apply(pass.batch().requires_grad_(), &block).sum().backward();
  });
}

// --- parameters without gradients

/// A trunk and experts of which each forward uses some.
struct Experts : torch::nn::Module {
  Experts() {
    trunk = register_module("trunk", Linear(4, 4));
    for (int i = 0; i < 4; ++i) {
      experts.push_back(register_module("expert" + std::to_string(i), Linear(4, 2)));
    }
    fill_with_integers(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    const at::Tensor y = trunk(x);
    at::Tensor sum = y.sum();
    for (const int expert : used) sum = sum + experts[static_cast<size_t>(expert)](y).sum();
    return sum;
  }
  Linear trunk{nullptr};
  std::vector<Linear> experts;
  std::set<int> used = {0, 1, 2, 3};
};
auto experts() { return std::make_shared<Experts>(); }

TEST_P(ReducerOf, TakesMissingGradientsForZero) {
  const std::vector<std::function<std::set<int>(int, int)>> choices = {
      [](int rank, int) {
        return rank == 0 ? std::set<int>{} : std::set<int>{0, 1};
      },
      [](int rank, int step) {
        return std::set<int>{rank % 4, (rank + step) % 4};
      },
      [](int, int) { return std::set<int>{2}; },
      [](int rank, int step) {
        return (rank + step) % 2 == 0 ? std::set<int>{3} : std::set<int>{};
      },
  };
  for (const auto& choose : choices) {
    expect_exact(
        experts,
        [&](const auto& pass) {
          pass.net->used = choose(pass.rank, pass.step);
          pass.forward(pass.batch()).backward();
        },
        finding_unused());
  }
}

TEST_P(ReducerOf, CountsLocalPassesOfParametersThatAreUnusedLater) {
  expect_exact(
      experts,
      [&](const auto& pass) {
        pass.locally([&] {
          pass.net->used = {pass.rank % 4, 3};
          pass.forward(pass.batch(1)).backward();
        });
        pass.net->used = {};
        pass.forward(pass.batch()).backward();
      },
      finding_unused());
}

TEST_P(ReducerOf, SkipsBucketsThatNobodyUses) {
  ReplicaOptions options = finding_unused();
  options.skip_all_reduce_unused_params = true;
  options.bucket_cap_mb = 1e-5;
  const auto body = [](const auto& pass) {
    pass.net->used = {pass.step % 4};
    pass.forward(pass.batch()).backward();
  };
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(experts(), group, options);
    for (int step = 0; step < 6; ++step) {
      expect_step(ddp, group, step, experts, body);
      const auto buckets = ddp.stats().buckets;
      const auto skipped = std::count_if(buckets.begin(), buckets.end(),
                                         [](const auto& bucket) { return bucket.finish_ns == 0; });
      EXPECT_GT(skipped, 0);
    }
  });
}

TEST_P(ReducerOf, LeavesGradientsThatNobodyUsesAsTheyWere) {
  expect_exact(
      experts,
      [&](const auto& pass) {
        pass.net->experts[1]->weight.mutable_grad() = at::ones({2, 4}) * (1 + pass.rank);
        pass.net->used = {0};
        pass.forward(pass.batch()).backward();
        // Here each rank keeps its own; the oracle has one.
        auto& own = pass.net->experts[1]->weight.mutable_grad();
        EXPECT_TRUE(at::equal(own, at::ones({2, 4}) * (1 + pass.rank)));
        own = at::ones({2, 4});
      },
      finding_unused());
}

TEST_P(ReducerOf, DoesNotWaitForParametersThatAStaticGraphNeverUses) {
  ReplicaOptions options;
  options.static_graph = true;
  for (const double cap : {1e-5, 1.0}) {
    options.bucket_cap_mb = cap;
    expect_exact(
        experts,
        [&](const auto& pass) {
          pass.net->used = {pass.rank % 2, 2};
          pass.forward(pass.batch()).backward();
        },
        options);
  }
}

TEST_P(ReducerOf, AStaticGraphIsNotThatOfARankWithoutInputs) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    ReplicaOptions options;
    options.static_graph = true;
    options.bucket_cap_mb = 1e-5;
    DistributedDataParallel ddp(experts(), group, options);
    const auto body = [](const auto& pass) {
      pass.net->used = {1};
      pass.forward(pass.batch()).backward();
    };
    if (group->getRank() == 0) {
      ddp.forward(integers({6, 4}, 0)).backward();
    } else {
      EXPECT_TRUE(ddp.replica().join_backward());
    }
    zero_gradients(ddp.parameters());
    for (int step = 1; step < 3; ++step) {
      zero_gradients(ddp.parameters());
      body(Pass<std::shared_ptr<Experts>>{ddp.module(),
                                          group->getRank(),
                                          step,
                                          [&](const at::Tensor& x) { return ddp.forward(x); },
                                          {}});
      const auto expected = oracle(group->getSize(), step, experts, body);
      const auto parameters = ddp.parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        if (!expected[i].defined()) continue;
        EXPECT_TRUE(at::equal(parameters[i].grad(), expected[i])) << i;
      }
    }
  });
}

/// Gives no gradient to its input.
struct Stop : torch::autograd::Function<Stop> {
  using Context = torch::autograd::AutogradContext;
  static at::Tensor forward(Context*, const at::Tensor& input) { return input.clone(); }
  static torch::autograd::variable_list backward(Context*, const torch::autograd::variable_list&) {
    return {at::Tensor()};
  }
};

TEST_P(ReducerOf, TakesAnUndefinedGradientForZero) {
  struct Stopping : torch::nn::Module {
    Stopping() {
      first = register_parameter("first", integers({4}, 1));
      second = register_parameter("second", integers({4}, 2));
    }
    at::Tensor forward(const at::Tensor& x) {
      const at::Tensor maybe = stops ? Stop::apply(first) : first;
      return (x * maybe).sum() + (x * second).sum();
    }
    bool stops = false;
    at::Tensor first, second;
  };
  expect_exact([] { return std::make_shared<Stopping>(); },
               [](const auto& pass) {
                 pass.net->stops = pass.rank == pass.step % 2;
                 pass.forward(pass.batch()).backward();
               });
}

// --- weights

/// Their sum over ranks and parts is a power of two.
int weight_of(int rank, int part) { return (rank == 0) == (part == 0) ? 0 : 2; }

TEST_P(ReducerOf, WeighsLossesThatAreMeans) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    for (int step = 0; step < 4; ++step) {
      zero_gradients(ddp.parameters());
      Sequential plain = small_net();
      const auto batch = [&](int rank, int part) {
        return integers({2, 4}, 100 * step + 10 * rank + part);
      };
      for (int rank = 0; rank < group->getSize(); ++rank) {
        for (const int part : {1, 0}) {
          const double share = weight_of(rank, part) / (2.0 * group->getSize());
          (plain->forward(batch(rank, part)).sum() * share).backward();
        }
      }
      const auto run = [&](int part) {
        ddp.set_loss_weight(weight_of(group->getRank(), part));
        ddp.forward(batch(group->getRank(), part)).sum().backward();
      };
      {
        const auto no_sync = ddp.no_sync();
        run(1);
      }
      run(0);
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()), "weighed");
    }
  });
}

TEST_P(ReducerOf, ForgetsWeightsOfPassesThatWereDropped) {
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    ddp.set_loss_weight(2);
    const auto drop_and_train = [&](const auto& pass) {
      pass.locally([&] { pass.forward(pass.batch(1)).sum().backward(); });
      zero_gradients(pass.net->parameters());
      pass.forward(pass.batch()).sum().backward();
    };
    for (int step = 0; step < 3; ++step) expect_step(ddp, group, step, small_net, drop_and_train);
  });
}

TEST_P(ReducerOf, AddsNoWeighedGradientsToThoseWithoutAWeight) {
  const auto forward_sum = [](auto& ddp, int rank, int part) {
    return ddp.forward(integers({2, 4}, 10 * rank + part)).sum();
  };
  const auto to_an_average = [&](auto& ddp, int rank) {
    ddp.set_loss_weight(2);
    forward_sum(ddp, rank, 0).backward();
    forward_sum(ddp, rank, 1).backward();
  };
  const auto to_a_local_pass = [&](auto& ddp, int rank) {
    const bool first_has_one = rank < 100;
    ddp.set_loss_weight(first_has_one ? std::optional<double>(2) : std::nullopt);
    {
      const auto no_sync = ddp.no_sync();
      forward_sum(ddp, rank, 0).backward();
    }
    ddp.set_loss_weight(first_has_one ? std::nullopt : std::optional<double>(2));
    forward_sum(ddp, rank, 1).backward();
  };
  const auto by_hand = [&](auto& ddp, int rank) {
    ddp.set_loss_weight(2);
    ddp.parameters()[1].mutable_grad() = at::ones_like(ddp.parameters()[1]);
    forward_sum(ddp, rank, 1).backward();
  };
  const auto train = [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); };
  run_replicas(backend(), world_size(), [&](const Group& group) {
    DistributedDataParallel ddp(small_net(), group);
    const int rank = group->getRank();
    for (int step = 0; step < 3; ++step) {
      const auto expect_error = [&](const auto& body, int who, const std::string& text) {
        zero_gradients(ddp.parameters());
        EXPECT_THAT(error_of<InvalidArgument>([&] { body(ddp, who); }), testing::HasSubstr(text));
        ddp.set_loss_weight(2);
        expect_step(ddp, group, step, small_net, train);
      };
      expect_error(to_an_average, rank,
                   "with a weight was to be added to gradients that have none");
      expect_error(by_hand, rank, "with a weight was to be added to gradients that have none");
      expect_error(to_a_local_pass, rank,
                   "without a weight was to be added to gradients that have one");
      expect_error(to_a_local_pass, rank + 100,
                   "with a weight was to be added to gradients that have none");
    }
  });
}

}  // namespace
}  // namespace farandole::test
