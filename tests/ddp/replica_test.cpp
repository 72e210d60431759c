// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/replica.h"

#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/batchnorm.h>

#include <limits>
#include <random>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "ddp/training.h"
#include "farandole/ddp/comm_hook.h"
#include "farandole/ddp/hooks/all_reduce_hook.h"
#include "farandole/error.h"

namespace farandole::test {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using torch::nn::Linear;
using torch::nn::Sequential;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

class ReplicaOf : public testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  std::string backend() const { return std::get<0>(GetParam()); }
  int world_size() const { return std::get<1>(GetParam()); }
  void run(const std::function<void(const Group&)>& body,
           milliseconds timeout = std::chrono::seconds(30)) const {
    run_replicas(backend(), world_size(), body, timeout);
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, ReplicaOf, testing::ValuesIn(backends_on({2, 4})),
                         [](const auto& param) {
                           return std::get<0>(param.param) +
                                  std::to_string(std::get<1>(param.param)) + "Ranks";
                         });

/// A backend of another kind, which does nothing.
struct OtherBackend : c10d::Backend {
  OtherBackend() : Backend(0, 1) {}
  const std::string getBackendName() const override { return "nccl"; }
};

TEST(ReplicaGroup, LeavesTensorsOfOtherDevicesToTheirBackend) {
  using Type = c10d::ProcessGroup::BackendType;
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
  const auto other = c10::make_intrusive<OtherBackend>();
  const auto ours = c10::make_intrusive<ProcessGroupFarandole>(store, 0, 1);
  group->setBoundDeviceId(at::Device(at::kCUDA, 0));
  group->setBackend(c10::DeviceType::CPU, Type::CUSTOM, ours);
  group->setBackend(c10::DeviceType::CUDA, Type::NCCL, other);
  const ReplicaGroup replicas(group);
  EXPECT_EQ(replicas.group()->getBackend(c10::DeviceType::CUDA).get(), other.get());
  EXPECT_EQ(other->getBoundDeviceId(), at::Device(at::kCUDA, 0));
  EXPECT_NE(replicas.shared_communicator(), nullptr);
  EXPECT_NE(replicas.shared_communicator(), ours->communicator(c10::DeviceType::CPU));
}

TEST(ReplicaGroup, TakesOverNewTimeouts) {
  run_replicas("farandole", 2, [&](const Group& group) {
    const ReplicaGroup replicas(group);
    ProcessGroupFarandole::of(*group)->setTimeout(milliseconds(300));
    if (group->getRank() == 1) {
      std::this_thread::sleep_for(milliseconds(900));
      return;
    }
    EXPECT_THAT(error_of<TimeoutError>([&] { replicas.all_gather(uint64_t{1}); }),
                HasSubstr("timeout of 300 ms"));
    EXPECT_THAT(error_of<CommError>([&] { replicas.shared_communicator()->barrier({}); }),
                HasSubstr("timeout of 300 ms"));
  });
}

struct FunctionFailed : std::runtime_error {
  FunctionFailed() : std::runtime_error("the function failed") {}
};

/// The identity, whose backward throws if it shall.
struct Fails : torch::autograd::Function<Fails> {
  using Context = torch::autograd::AutogradContext;
  static at::Tensor forward(Context* context, const at::Tensor& input, bool shall) {
    context->saved_data["shall"] = shall;
    return input.clone();
  }
  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (context->saved_data["shall"].toBool()) throw FunctionFailed();
    return {gradients[0], at::Tensor()};
  }
};

/// Layers one after the other; can fail on the way, and leave layers out.
struct Chain : torch::nn::Module {
  explicit Chain(int count = 4) {
    for (int i = 0; i < count; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), Linear(4, 4)));
    }
    fill_with_integers(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    if (forward_fails) throw FunctionFailed();
    at::Tensor y = x;
    for (int i = 0; i < static_cast<int>(layers.size()); ++i) {
      if (left_out.count(i) != 0) continue;
      y = Fails::apply(layers[static_cast<size_t>(i)](y), i == backward_fails_above).relu();
    }
    return y;
  }
  std::vector<Linear> layers;
  bool forward_fails = false;
  int backward_fails_above = -1;  ///< this layer, which gets no gradients then
  std::set<int> left_out;
};
std::shared_ptr<Chain> chain() { return std::make_shared<Chain>(2); }

/// A bucket for each parameter.
ReplicaOptions small_buckets() {
  ReplicaOptions options;
  options.bucket_cap_mb = 1e-5;
  return options;
}

const auto train = [](const auto& pass) { pass.forward(pass.batch()).sum().backward(); };

/// Two exact steps.
template <class Net>
void expect_training(DistributedDataParallel<Net>& ddp, const Group& group, int first_step) {
  for (int step = first_step; step < first_step + 2; ++step) {
    expect_step(ddp, group, step, chain, train);
  }
}

template <class Net>
void backward(DistributedDataParallel<Net>& ddp, const Group& group, int step) {
  zero_gradients(ddp.parameters());
  ddp.forward(integers({6, 4}, 10 * step + group->getRank())).sum().backward();
}

/// This rank's backward fails above the layer `above`.
void abandon_here(DistributedDataParallel<Chain>& ddp, const Group& group, int step, int above) {
  ddp.module()->backward_fails_above = above;
  EXPECT_THROW(backward(ddp, group, step), FunctionFailed);
  ddp.module()->backward_fails_above = -1;
}

/// A backward that fails on rank 1, above the layer `above`, and is told to the others.
void abandon_on_rank_1(DistributedDataParallel<Chain>& ddp, const Group& group, int step,
                       int above) {
  if (group->getRank() == 1) {
    abandon_here(ddp, group, step, above);
  } else {
    const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
    EXPECT_THAT(error, HasSubstr("was abandoned by rank 1."));
  }
}

// --- parameters without gradients

TEST_P(ReplicaOf, NamesParametersAndRanksWithoutAGradient) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    for (int step = 0; step < 9; step += 3) {
      if (group->getRank() == 1) ddp.module()->left_out = {0};
      const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
      EXPECT_THAT(error, HasSubstr("'layer0.weight' on rank 1, 'layer0.bias' on rank 1."));
      ddp.module()->left_out = {};
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, NamesParametersThatNobodyUses) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (int step = 0; step < 6; step += 3) {
      ddp.module()->left_out = {1};
      const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
      EXPECT_THAT(error, HasSubstr("'layer1.weight' on every rank"));
      ddp.module()->left_out = {};
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, NamesMissingGradientsWhereOnlySomeRanksTakeThemForZero) {
  run([&](const Group& group) {
    ReplicaOptions options;
    options.find_unused_parameters = group->getRank() == 0;
    DistributedDataParallel ddp(chain(), group, options);
    for (int step = 0; step < 6; step += 3) {
      ddp.module()->left_out = {0};
      const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
      EXPECT_THAT(error, HasSubstr("'layer0.weight' on rank"));
      ddp.module()->left_out = {};
      expect_training(ddp, group, step + 1);
    }
  });
}

// --- losses that are not returned

/// Keeps its loss; what it returns has no part in it.
struct Keeping : torch::nn::Module {
  Keeping() {
    layer = register_module("layer", Linear(4, 2));
    other = register_module("other", Linear(4, 2));
    fill_with_integers(*this);
  }
  at::Tensor forward(const at::Tensor& x) {
    loss = layer(x).sum();
    return other(x);
  }
  Linear layer{nullptr}, other{nullptr};
  at::Tensor loss;
};
std::shared_ptr<Keeping> keeping() { return std::make_shared<Keeping>(); }

const auto train_keeping = [](const auto& pass) {
  const at::Tensor output = pass.forward(pass.batch()).sum();
  (output + pass.net->loss).backward();
};

TEST_P(ReplicaOf, AveragesALossThatWasNotReturned) {
  run([&](const Group& group) {
    ReplicaOptions options;
    options.find_unused_parameters = true;
    DistributedDataParallel ddp(keeping(), group, options);
    const auto loss_is_kept = [](const auto& pass) {
      pass.forward(pass.batch());
      pass.net->loss.backward();
    };
    for (int step = 0; step < 3; ++step) expect_step(ddp, group, step, keeping, loss_is_kept);
  });
}

TEST_P(ReplicaOf, NamesParametersThatALossWhichWasNotReturnedLeavesOut) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(keeping(), group);
    const auto batch = integers({6, 4}, group->getRank());
    for (int step = 0; step < 3; ++step) {
      ddp.forward(batch);
      EXPECT_THAT(error_of<BackwardError>([&] { ddp.module()->loss.backward(); }),
                  HasSubstr("'other.weight'"));
      expect_step(ddp, group, step, keeping, train_keeping);
    }
  });
}

TEST_P(ReplicaOf, TakesForwardsAndLossesThatAreMeantToBeLocal) {
  run([&](const Group& group) {
    ReplicaOptions options;
    options.find_unused_parameters = true;
    DistributedDataParallel ddp(keeping(), group, options);
    const auto batch = integers({6, 4}, group->getRank());
    for (int step = 0; step < 3; ++step) {
      {
        const auto no_sync = ddp.no_sync();
        ddp.forward(batch);
        ddp.module()->loss.backward();
      }
      {
        const c10::NoGradGuard no_grad;
        ddp.forward(batch);
      }
      const at::Tensor output = ddp.forward(batch);
      torch::autograd::grad({ddp.module()->loss}, {ddp.module()->layer->weight}, {}, true);
      ddp.module()->loss.backward();
      output.sum().backward();
      ddp.module()->forward(batch).sum().backward();
      expect_step(ddp, group, step, keeping, train_keeping);
    }
  });
}

// --- exceptions

TEST_P(ReplicaOf, NamesARankWhoseForwardFailed) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (int step = 0; step < 9; step += 3) {
      if (group->getRank() == 1) {
        ddp.module()->forward_fails = true;
        EXPECT_THROW(backward(ddp, group, step), FunctionFailed);
        ddp.module()->forward_fails = false;
      }
      const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
      EXPECT_THAT(error, HasSubstr("rank 1 skipped one."));
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, GoesOnWhenAllRanksSkipABatchWhoseForwardFailedOnOne) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (int step = 0; step < 9; step += 3) {
      ddp.module()->forward_fails = group->getRank() == 1;
      if (group->getRank() == 1) {
        EXPECT_THROW(ddp.forward(at::ones({1, 4})), FunctionFailed);
      } else {
        ddp.forward(at::ones({1, 4}));
      }
      ddp.module()->forward_fails = false;
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, NamesARankWhoseForwardFailedBetweenItsBuffers) {
  run([&](const Group& group) {
    const auto make = [] { return Sequential(Linear(4, 4), torch::nn::BatchNorm1d(4)); };
    DistributedDataParallel ddp(make(), group);
    const auto steps = [&](int count) {
      for (int step = 0; step < count; ++step) backward(ddp, group, step);
    };
    steps(2);
    if (group->getRank() == 1) {
      EXPECT_ANY_THROW(ddp.forward(at::ones({1, 3})));
    }
    error_of<CommError>([&] { steps(1); });
    steps(3);
    EXPECT_EQ(ddp.stats().ranks.size(), static_cast<size_t>(group->getSize()));
  });
}

TEST_P(ReplicaOf, NamesARankThatAbandonedItsBackward) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    int step = 0;
    for (const int above : {1, 0, 1, 0}) {
      abandon_on_rank_1(ddp, group, step, above);
      expect_training(ddp, group, ++step);
      ++step;
    }
  });
}

TEST_P(ReplicaOf, GoesOnWhenAllRanksAbandonTheirBackward) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    for (int step = 0; step < 9; step += 3) {
      abandon_here(ddp, group, step, group->getRank() % 2);
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, TellsOfAnAbandonedBackwardInALocalPassToo) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (int step = 0; step < 9; step += 3) {
      abandon_on_rank_1(ddp, group, step, 1);
      {
        const auto no_sync = ddp.no_sync();
        ddp.forward(at::ones({1, 4}));
      }
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, GradientsOfAnAbandonedBackwardAreItsRanksOwn) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    expect_training(ddp, group, 0);
    if (group->getRank() == 1) {
      abandon_here(ddp, group, 2, 0);
      for (at::Tensor& parameter : ddp.parameters()) {
        if (parameter.grad().defined()) parameter.mutable_grad().zero_();
      }
      std::this_thread::sleep_for(milliseconds(300));  // peers reduce what was launched
    } else {
      std::this_thread::sleep_for(milliseconds(100));
      error_of<BackwardError>([&] { backward(ddp, group, 2); });
      zero_gradients(ddp.parameters());
    }
    ddp.forward(integers({6, 4}, 3000 + group->getRank())).sum().backward();
    expect_gradients(ddp.parameters(), oracle(group->getSize(), 3, chain, train), "afterwards");
  });
}

TEST_P(ReplicaOf, LocalGradientsAfterAnAbandonedBackwardAreItsRanksOwn) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    expect_training(ddp, group, 0);
    if (group->getRank() == 1) {
      abandon_here(ddp, group, 2, 0);
      const auto plain = chain();
      zero_gradients(ddp.parameters());
      for (const auto& module : {ddp.module(), plain}) {
        module->forward(integers({6, 4}, 7)).sum().backward();
      }
      std::this_thread::sleep_for(milliseconds(300));  // peers reduce what was launched
      expect_gradients(ddp.parameters(), gradients_of(plain->parameters()), "local");
    } else {
      std::this_thread::sleep_for(milliseconds(100));
      error_of<BackwardError>([&] { backward(ddp, group, 2); });
    }
    expect_training(ddp, group, 3);
  });
}

TEST_P(ReplicaOf, ZerosAfterAnAbandonedBackwardStayZeros) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    expect_training(ddp, group, 0);
    const auto zero_in_place = [&] {
      for (at::Tensor& parameter : ddp.parameters()) parameter.mutable_grad().zero_();
    };
    for (int step = 2; step < 8; step += 2) {
      zero_in_place();
      const auto fail = [&] {
        ddp.forward(integers({6, 4}, step + group->getRank())).sum().backward();
      };
      if (group->getRank() == 1) {
        ddp.module()->backward_fails_above = step % 4 / 2;
        EXPECT_THROW(fail(), FunctionFailed);
        ddp.module()->backward_fails_above = -1;
      } else {
        error_of<BackwardError>(fail);
      }
      zero_in_place();
      const int next = step + 1;
      ddp.forward(integers({6, 4}, 1000 * next + group->getRank())).sum().backward();
      expect_gradients(ddp.parameters(), oracle(group->getSize(), next, chain, train), "after it");
    }
  });
}

TEST_P(ReplicaOf, NamesRanksThatSetAWeight) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (int step = 0; step < 9; step += 3) {
      if (group->getRank() == 1) ddp.set_loss_weight(2);
      const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
      EXPECT_THAT(error, HasSubstr("only rank 1 gave the loss a weight."));
      ddp.set_loss_weight(std::nullopt);
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, TakesNoWeightThatIsNone) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (const double weight : {-1.0, kNan, kInfinity}) {
      EXPECT_THAT(error_of<InvalidArgument>([&] { ddp.set_loss_weight(weight); }),
                  HasSubstr("set_loss_weight() got"));
    }
    expect_training(ddp, group, 0);
  });
}

// --- modules that do not fit

TEST_P(ReplicaOf, TellsHowModulesDiffer) {
  using Make = std::function<std::shared_ptr<torch::nn::Module>()>;
  struct Named : torch::nn::Module {
    Named(const std::string& name, const at::Tensor& tensor, bool trains = true) {
      register_parameter("first", at::ones({2}));
      register_parameter(name, tensor, trains);
    }
  };
  const auto named = [](const std::string& name, const at::Tensor& tensor, bool trains = true) {
    return [=] { return std::make_shared<Named>(name, tensor, trains); };
  };
  const std::vector<std::pair<Make, std::string>> others = {
      {named("b", at::ones({3})), "'b'"},
      {named("a", at::ones({4})), "[4]"},
      {named("a", at::ones({3}, at::kDouble)), "Double"},
      {named("a", at::ones({3}), false), "(frozen)"},
      {[] { return std::make_shared<torch::nn::Module>(); }, "nothing more"},
      {[] {
         auto module = std::make_shared<Named>("a", at::ones({3}));
         module->register_buffer("buffer", at::ones({3}));
         return module;
       },
       "buffer 'buffer'"},
  };
  run([&](const Group& group) {
    for (const auto& [make_other, difference] : others) {
      const auto module = group->getRank() == 1 ? make_other() : named("a", at::ones({3}))();
      const std::string error = error_of<InvalidArgument>(
          [&] { Replica(named_parameters_of(*module), named_buffers_of(*module), group, {}); });
      EXPECT_THAT(error, HasSubstr("different modules"));
      EXPECT_THAT(error, HasSubstr(difference));
    }
  });
}

TEST_P(ReplicaOf, TakesNoModuleWithoutParametersToTrain) {
  run([&](const Group& group) {
    EXPECT_THAT(error_of<InvalidArgument>([&] { Replica({}, {}, group, {}); }),
                HasSubstr("without parameters to train"));
    const NamedTensors frozen = {{"a", at::ones({3})}};
    EXPECT_THAT(error_of<InvalidArgument>([&] { Replica(frozen, {}, group, {}); }),
                HasSubstr("none of its parameters requires a gradient."));
  });
}

TEST_P(ReplicaOf, TakesNoCapsWithoutRoom) {
  run([&](const Group& group) {
    for (const double mib : {0.0, -1.0, kNan, kInfinity}) {
      ReplicaOptions options;
      options.bucket_cap_mb = mib;
      EXPECT_THAT(
          error_of<InvalidArgument>([&] { DistributedDataParallel(chain(), group, options); }),
          HasSubstr("bucket_cap_mb got"));
      options.bucket_cap_mb.reset();
      options.bucket_cap_mb_list = {1, mib};
      EXPECT_THAT(
          error_of<InvalidArgument>([&] { DistributedDataParallel(chain(), group, options); }),
          HasSubstr("bucket_cap_mb_list got"));
    }
  });
}

TEST_P(ReplicaOf, TakesNoWireDtypeThatGradientsCannotHave) {
  run([](const Group& group) {
    ReplicaOptions options;
    options.wire_dtype = at::kInt;
    EXPECT_THAT(
        error_of<InvalidArgument>([&] { DistributedDataParallel(chain(), group, options); }),
        HasSubstr("DistributedDataParallel got the wire_dtype Int."));
  });
}

TEST_P(ReplicaOf, TakesNoHookBesideAWireDtype) {
  run([](const Group& group) {
    ReplicaOptions options = small_buckets();
    options.wire_dtype = at::kBFloat16;
    DistributedDataParallel ddp(chain(), group, options);
    EXPECT_THAT(error_of<InvalidArgument>(
                    [&] { ddp.register_comm_hook(std::make_shared<AllReduceHook>(group)); }),
                HasSubstr("a communication hook was registered in addition to wire_dtype."));
    backward(ddp, group, 1);
  });
}

TEST_P(ReplicaOf, TellsThatWireDtypesDiffer) {
  run([](const Group& group) {
    ReplicaOptions options;
    if (group->getRank() == 1) options.wire_dtype = at::kHalf;
    DistributedDataParallel ddp(chain(), group, options);
    EXPECT_THAT(error_of<BackwardError>([&] { backward(ddp, group, 0); }),
                HasSubstr("different bucket caps or wire dtypes"));
  });
}

TEST_P(ReplicaOf, TellsThatBucketsDiffer) {
  run([&](const Group& group) {
    ReplicaOptions options;
    options.bucket_cap_mb = group->getRank() == 1 ? 1e-5 : 1.0;
    DistributedDataParallel ddp(chain(), group, options);
    for (int step = 0; step < 2; ++step) {
      const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
      EXPECT_THAT(error, HasSubstr("ranks 0 and 1 in group"));
    }
  });
}

TEST_P(ReplicaOf, TellsThatOneRankHasFrozenParameters) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    auto first = ddp.parameters()[0];
    if (group->getRank() == 1) first.set_requires_grad(false);
    const std::string error = error_of<BackwardError>([&] { backward(ddp, group, 0); });
    EXPECT_THAT(error, HasSubstr("ranks 0 and 1 in group"));
    first.set_requires_grad(true);
    expect_training(ddp, group, 1);
    if (group->getRank() == 1) first.set_requires_grad(false);
    error_of<CommError>([&] { backward(ddp, group, 3); });
    first.set_requires_grad(false);
    const auto freeze_and_train = [](const auto& pass) {
      pass.net->parameters()[0].set_requires_grad(false);
      train(pass);
    };
    for (int step = 4; step < 6; ++step) expect_step(ddp, group, step, chain, freeze_and_train);
  });
}

// --- peers in trouble

TEST_P(ReplicaOf, NamesARankThatLeft) {
  for (const int steps : {0, 2}) {
    run([&](const Group& group) {
      DistributedDataParallel ddp(chain(), group);
      for (int step = 0; step < steps; ++step) expect_step(ddp, group, step, chain, train);
      if (group->getRank() == 1) return;
      const std::string error = error_of<CommError>([&] { backward(ddp, group, steps); });
      EXPECT_THAT(error, HasSubstr("rank 1"));
    });
  }
}

TEST_P(ReplicaOf, NamesARankThatIsLate) {
  run(
      [&](const Group& group) {
        DistributedDataParallel ddp(chain(), group);
        for (int step = 0; step < 2; ++step) expect_step(ddp, group, step, chain, train);
        if (group->getRank() == 1) std::this_thread::sleep_for(milliseconds(3000));
        const std::string error = error_of<CommError>([&] { backward(ddp, group, 2); });
        if (group->getRank() != 1) {
          EXPECT_THAT(error, HasSubstr("rank 1"));
        }
      },
      milliseconds(1500));
}

TEST_P(ReplicaOf, AnAbortOfTheProgramsGroupWakesBackward) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (int step = 0; step < 2; ++step) expect_step(ddp, group, step, chain, train);
    if (group->getRank() == 1) {
      std::this_thread::sleep_for(milliseconds(100));
      group->getBackend(c10::DeviceType::CPU)->abort();
      std::this_thread::sleep_for(milliseconds(500));
    } else {
      error_of<CommError>([&] { backward(ddp, group, 2); });
    }
  });
}

// --- hooks

/// Fails at one bucket, as often as it is told.
class FailingHook : public AllReduceHook {
 public:
  FailingHook(const Group& group, int failures, size_t bucket = 3)
      : AllReduceHook(group), failures_(failures), bucket_(bucket) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    if (bucket.getIndex() == bucket_ && failures_-- > 0) throw FunctionFailed();
    return AllReduceHook::runHook(bucket);
  }

 private:
  int failures_;
  size_t bucket_;
};

TEST_P(ReplicaOf, GoesOnAfterAHookHasFailed) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    for (int step = 0; step < 9; step += 3) {
      ddp.register_comm_hook(std::make_shared<FailingHook>(group, 1));
      EXPECT_THROW(backward(ddp, group, step), FunctionFailed);
      expect_training(ddp, group, step + 1);
    }
  });
}

TEST_P(ReplicaOf, NamesARankWhoseHookHasFailed) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    for (int step = 0; step < 9; step += 3) {
      const int failures = group->getRank() == 1 ? 1 : 0;
      ddp.register_comm_hook(std::make_shared<FailingHook>(group, failures, step % 2));
      if (group->getRank() == 1) {
        EXPECT_THROW(backward(ddp, group, step), FunctionFailed);
      } else {
        const std::string error = error_of<BackwardError>([&] { backward(ddp, group, step); });
        const std::string text =
            "the communication hook failed for bucket " + std::to_string(step % 2) + " on rank 1";
        EXPECT_THAT(error, HasSubstr(text));
      }
      expect_training(ddp, group, step + 1);
    }
  });
}

/// One of torch's interface whose future at bucket 1 holds an error, once its collective is done.
class FailingFuture : public c10d::CommHookInterface {
 public:
  FailingFuture(const Group& group, int failures) : inner_(group), failures_(failures) {}
  c10::intrusive_ptr<c10::ivalue::Future> runHook(c10d::GradBucket& bucket) override {
    const auto future = inner_.runHook(bucket);
    if (bucket.getIndex() != 1 || failures_-- <= 0) return future;
    return future->then(
        [](c10::ivalue::Future& /*done*/) -> c10::IValue { throw FunctionFailed(); },
        c10::TensorType::get());
  }
  at::Tensor parseHookResult(const c10::IValue& result) override {
    return inner_.parseHookResult(result);
  }

 private:
  AllReduceHook inner_;
  int failures_;
};

TEST_P(ReplicaOf, TellsTheOthersOfAFutureThatHasFailed) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    ddp.register_comm_hook(std::make_shared<FailingFuture>(group, group->getRank() == 1 ? 1 : 0));
    if (group->getRank() == 1) {
      EXPECT_THROW(backward(ddp, group, 0), FunctionFailed);
    } else {
      const std::string error = error_of<BackwardError>([&] { backward(ddp, group, 0); });
      EXPECT_THAT(error, HasSubstr("the communication hook failed for bucket 1 on rank 1"));
    }
    for (int step = 1; step < 4; ++step) expect_training(ddp, group, step);
  });
}

TEST_P(ReplicaOf, GoesOnWhenAHookFailsAgainAndAgain) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group, small_buckets());
    expect_training(ddp, group, 0);
    ddp.register_comm_hook(std::make_shared<FailingHook>(group, 5, 1));
    for (int step = 2; step < 5; ++step) {
      EXPECT_THROW(backward(ddp, group, step), FunctionFailed);
    }
    expect_training(ddp, group, 5);
  });
}

TEST_P(ReplicaOf, TakesAHookAfterAnAbandonedBackward) {
  run([&](const Group& group) {
    DistributedDataParallel ddp(chain(), group);
    for (int step = 0; step < 9; step += 3) {
      abandon_on_rank_1(ddp, group, step, 1);
      ddp.register_comm_hook(std::make_shared<AllReduceHook>(group));
      expect_training(ddp, group, step + 1);
      ddp.register_comm_hook(nullptr);
      expect_training(ddp, group, step + 1);
    }
  });
}

// --- everything at once

/// What happens to the ranks in one step; the same on every rank.
struct Plot {
  explicit Plot(int step, int world_size) : random(static_cast<unsigned>(step)) {
    const bool fails = random() % 6 == 0;
    for (int rank = 0; rank < world_size; ++rank) {
      failing.push_back(fails && random() % 2 == 0 ? static_cast<int>(random() % 4) : -1);
      std::set<int> unused;
      for (int layer = 0; layer < 3; ++layer) {
        if (random() % 4 == 0 && layer != failing.back()) unused.insert(layer);
      }
      left_out.push_back(unused);
    }
    in_place = random() % 2 == 0;
    accumulates = random() % 3 == 0;
  }
  std::vector<int> ranks_that_fail() const {
    std::vector<int> ranks;
    for (size_t rank = 0; rank < failing.size(); ++rank) {
      if (failing[rank] != -1) ranks.push_back(static_cast<int>(rank));
    }
    return ranks;
  }
  std::mt19937 random;
  std::vector<int> failing;  ///< by rank: the layer above which backward fails
  std::vector<std::set<int>> left_out;
  bool in_place;
  bool accumulates;
};

TEST_P(ReplicaOf, SurvivesRandomFailures) {
  const int steps = thin_matrix() ? 40 : 200;
  run([&](const Group& group) {
    const auto make = [] { return std::make_shared<Chain>(); };
    const auto rank = static_cast<size_t>(group->getRank());
    ReplicaOptions options = small_buckets();
    options.find_unused_parameters = true;
    DistributedDataParallel ddp(make(), group, options);
    std::mt19937 own(static_cast<unsigned>(rank));
    for (int step = 0; step < steps; ++step) {
      const Plot plot(step, group->getSize());
      const auto body = [&](const auto& pass) {
        const auto who = static_cast<size_t>(pass.rank);
        pass.net->left_out = plot.left_out[who];
        if (plot.accumulates) {
          pass.net->backward_fails_above = -1;
          pass.locally([&] { pass.forward(pass.batch(1)).sum().backward(); });
        }
        pass.net->backward_fails_above = plot.failing[who];
        pass.forward(pass.batch()).sum().backward();
      };
      std::this_thread::sleep_for(std::chrono::microseconds(own() % 500));
      const std::vector<int> failing = plot.ranks_that_fail();
      if (failing.empty()) {
        expect_step(ddp, group, step, make, body);
        continue;
      }
      const auto run_body = [&] {
        body(Pass<std::shared_ptr<Chain>>{ddp.module(), group->getRank(), step,
                                          [&](const at::Tensor& x) { return ddp.forward(x); },
                                          [&](const std::function<void()>& local) {
                                            const auto no_sync = ddp.no_sync();
                                            local();
                                          }});
      };
      if (plot.failing[rank] != -1) {
        EXPECT_THROW(run_body(), FunctionFailed) << step;
      } else {
        EXPECT_THAT(error_of<BackwardError>(run_body), HasSubstr("was abandoned by rank"));
      }
    }
    ddp.module()->left_out = {};
    ddp.module()->backward_fails_above = -1;
    expect_step(ddp, group, steps, make, train);
  });
}

}  // namespace
}  // namespace farandole::test
