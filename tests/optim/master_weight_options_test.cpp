// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/master_weight_options.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/rmsprop.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <functional>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "bowl.h"
#include "farandole/error.h"
#include "farandole/optim/zero_redundancy_optimizer.h"

namespace farandole {
namespace {

using test::Bowl;
using test::bowl;
using test::BowlWeight;
using test::run_replicas;
using testing::HasSubstr;

using Zero = ZeroRedundancyOptimizer;
using Options = torch::optim::OptimizerOptions;

/// kOddWeights with most of them in bfloat16.
const std::vector<BowlWeight> kMixed = {
    {{33, 17}, at::kBFloat16},     {{1031}, at::kBFloat16}, {{}, at::kBFloat16},
    {{4, 7, 3, 3}, at::kBFloat16}, {{0}, at::kBFloat16},    {{15}},
    {{129}, at::kBFloat16},
};

constexpr MasterWeightOptions kNearest{false, false, 0};
constexpr MasterWeightOptions kStochastic{false, true, 5};

/// What one rank trains.
struct HalfRank {
  std::shared_ptr<Bowl> model;
  std::unique_ptr<DistributedDataParallel<Bowl>> ddp;
  std::unique_ptr<Zero> optimizer;

  HalfRank(const Group& group, const Options& options, const MasterWeightOptions& masters,
           GradientMode mode = GradientMode::kFull, const std::vector<BowlWeight>& specs = kMixed)
      : model(bowl(specs)), ddp(std::make_unique<DistributedDataParallel<Bowl>>(model, group)) {
    ZeroOptions zero;
    zero.gradients = mode;
    zero.master_weights = masters;
    optimizer = std::make_unique<Zero>(*ddp, options, zero);
  }
  /// The same gradients on every rank, so that their averages are the same for any number of ranks.
  void train(int first, int last) {
    for (int step = first; step <= last; ++step) {
      optimizer->zero_grad();
      ddp->forward(0, step).backward();
      optimizer->step();
      optimizer->wait();
    }
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& weight : model->weights) copies.push_back(weight.detach().clone());
    return copies;
  }
  void set(const std::vector<at::Tensor>& weights) {
    const c10::NoGradGuard no_grad;
    for (size_t i = 0; i < weights.size(); ++i) model->weights[i].copy_(weights[i]);
  }
};

std::string saved_by(HalfRank& rank, int from) {
  rank.optimizer->consolidate_state_dict(from);
  std::string own;
  if (rank.optimizer->rank() == from) {
    torch::serialize::OutputArchive archive;
    rank.optimizer->save(archive);
    std::ostringstream stream;
    archive.save_to(stream);
    own = stream.str();
  }
  return rank.optimizer->engine().all_gather(own)[static_cast<size_t>(from)];
}

void load(HalfRank& rank, const std::string& text) {
  std::istringstream stream(text);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  rank.optimizer->load(archive);
}

/// The weights of rank 0 after some steps, which all ranks have.
std::vector<at::Tensor> trained(const std::string& backend, int size, GradientMode mode,
                                const Options& options, const MasterWeightOptions& masters) {
  std::vector<at::Tensor> weights;
  run_replicas(backend, size, [&](const Group& group) {
    HalfRank rank(group, options, masters, mode);
    rank.train(1, 6);
    double sum = 0;
    for (const at::Tensor& weight : rank.weights())
      sum += weight.to(at::kDouble).sum().item<double>();
    for (const auto& each : rank.optimizer->engine().all_gather(std::to_string(sum))) {
      EXPECT_EQ(each, std::to_string(sum));
    }
    if (group->getRank() == 0) weights = rank.weights();
  });
  return weights;
}

struct HalfKind {
  std::string name;
  std::shared_ptr<Options> options;
};

std::vector<HalfKind> half_kinds() {
  return {{"SGD", std::make_shared<SGDOptions>(0.01)},
          {"Momentum", std::make_shared<SGDOptions>(SGDOptions(0.01).momentum(0.9))},
          {"AdamW", std::make_shared<AdamWOptions>(0.001)}};
}

class MasterWeightOptionsOf : public testing::TestWithParam<HalfKind> {};
INSTANTIATE_TEST_SUITE_P(Optimizers, MasterWeightOptionsOf, testing::ValuesIn(half_kinds()),
                         [](const auto& each) { return each.param.name; });

TEST_P(MasterWeightOptionsOf, GiveTheSameBitsOnAnyNumberOfRanksInBothModes) {
  const auto& options = *GetParam().options;
  for (const MasterWeightOptions& masters : {kStochastic, kNearest}) {
    const auto alone = trained("farandole", 1, GradientMode::kFull, options, masters);
    for (const GradientMode mode : test::kBothModes) {
      for (const auto& [backend, size] : std::vector<std::pair<std::string, int>>{
               {"farandole", 2}, {"farandole", 3}, {"foreign", 2}}) {
        const auto together = trained(backend, size, mode, options, masters);
        for (size_t i = 0; i < alone.size(); ++i) {
          EXPECT_TRUE(at::equal(alone[i], together[i])) << backend << size << " weight" << i;
        }
      }
    }
  }
}

TEST_P(MasterWeightOptionsOf, GoOnFromAnArchiveWithOtherRanksToTheLastBit) {
  const auto& options = *GetParam().options;
  std::string archive;
  std::vector<at::Tensor> middle, end;
  run_replicas("farandole", 2, [&](const Group& group) {
    HalfRank rank(group, options, kStochastic);
    rank.train(1, 4);
    const std::string text = saved_by(rank, 0);
    const bool tells = group->getRank() == 0;
    if (tells) archive = text;
    if (tells) middle = rank.weights();
    rank.train(5, 8);
    if (tells) end = rank.weights();
  });
  run_replicas("farandole", 3, [&](const Group& group) {
    HalfRank rank(group, options, kStochastic, GradientMode::kShard);
    rank.set(middle);
    load(rank, archive);
    rank.train(5, 8);
    for (size_t i = 0; i < end.size(); ++i) {
      EXPECT_TRUE(at::equal(rank.model->weights[i], end[i])) << "weight" << i;
    }
  });
}

TEST_P(MasterWeightOptionsOf, GoOnWhenShardsAreCutAnew) {
  run_replicas("farandole", 2, [](const Group& group) {
    HalfRank rank(group, *GetParam().options, kStochastic);
    HalfRank other(group, *GetParam().options, kStochastic);
    rank.train(1, 6);
    other.train(1, 3);
    other.optimizer->rebuild();
    other.train(4, 6);
    test::expect_weights(*other.model, rank.weights(), 0, "after rebuild()");
  });
}

TEST(MasterWeightOptions, WithoutMasterWeightsRoundEachStepOfFloat32) {
  run_replicas("farandole", 2, [](const Group& group) {
    const std::vector<BowlWeight> specs = {{{1500}, at::kBFloat16}, {{40}, at::kHalf}};
    HalfRank rank(group, SGDOptions(0.01), kNearest, GradientMode::kFull, specs);
    for (int step = 1; step <= 5; ++step) {
      std::vector<at::Tensor> expected;
      for (const at::Tensor& weight : rank.weights()) {
        const at::Tensor gradient = weight - test::drawn(weight, 1000 * step);
        const at::Tensor moved =
            weight.to(at::kFloat).addcmul(gradient.to(at::kFloat), at::tensor(-0.01F));
        expected.push_back(moved.to(weight.scalar_type()));
      }
      rank.train(step, step);
      for (size_t i = 0; i < expected.size(); ++i) {
        EXPECT_TRUE(at::allclose(rank.model->weights[i], expected[i], 0, 0)) << step << " " << i;
      }
    }
  });
}

TEST(MasterWeightOptions, SaveFourBytesAnElementOfTheShard) {
  run_replicas("farandole", 2, [](const Group& group) {
    const std::vector<BowlWeight> specs = {{{4096}, at::kBFloat16}};
    HalfRank masters(group, AdamWOptions(0.01), {}, GradientMode::kFull, specs);
    HalfRank none(group, AdamWOptions(0.01), kNearest, GradientMode::kFull, specs);
    masters.train(1, 1);
    none.train(1, 1);
    EXPECT_EQ(masters.optimizer->state_bytes(), 3 * 4 * 2048);
    EXPECT_EQ(none.optimizer->state_bytes(), 2 * 4 * 2048);
  });
}

/// Each of `elements` ones is to go down by `lr` in each step.
at::Tensor moved(const Group& group, const MasterWeightOptions& masters, int64_t elements,
                 double lr, int steps) {
  const at::Tensor weight = at::ones({elements}, at::kBFloat16).requires_grad_();
  ZeroOptions zero;
  zero.group = group;
  zero.master_weights = masters;
  Zero optimizer(std::vector<at::Tensor>{weight}, SGDOptions(lr), zero);
  weight.mutable_grad() = at::ones_like(weight);
  for (int step = 0; step < steps; ++step) optimizer.step();
  optimizer.wait();
  return weight.detach().clone();
}

TEST(MasterWeightOptions, MoveWhatIsTooLittleForABfloat16OnAverage) {
  run_replicas("farandole", 2, [](const Group& group) {
    const int64_t elements = 1 << 14;
    const double lr = std::exp2(-12);  // a sixteenth of the distance to the next bfloat16
    const int steps = 64;
    EXPECT_TRUE(at::equal(moved(group, kNearest, elements, lr, steps),
                          at::ones({elements}, at::kBFloat16)));
    const at::Tensor stochastic = moved(group, kStochastic, elements, lr, steps).to(at::kDouble);
    // In each step var = p (1 - p) distance^2.
    const double deviation = std::exp2(-8) * std::sqrt(steps * 15.0 / 256);
    EXPECT_NEAR(stochastic.mean().item<double>(), 1 - steps * lr,
                4 * deviation / std::sqrt(static_cast<double>(elements)));
    EXPECT_NEAR(stochastic.std().item<double>(), deviation, 0.05 * deviation);
  });
}

TEST(MasterWeightOptions, HaveOtherBitsWithAnotherSeed) {
  run_replicas("farandole", 1, [](const Group& group) {
    const MasterWeightOptions other{false, true, 6};
    const at::Tensor first = moved(group, kStochastic, 1000, 1e-3, 3);
    EXPECT_TRUE(at::equal(first, moved(group, kStochastic, 1000, 1e-3, 3)));
    EXPECT_FALSE(at::equal(first, moved(group, other, 1000, 1e-3, 3)));
  });
}

// --- misuse

TEST(MasterWeightOptions, RefuseWhatCannotBe) {
  run_replicas("farandole", 1, [](const Group& group) {
    const auto text_of = [&](at::ScalarType dtype, const Options& options,
                             const MasterWeightOptions& masters) {
      const at::Tensor weight = at::ones({3}, dtype).requires_grad_();
      ZeroOptions zero;
      zero.group = group;
      zero.master_weights = masters;
      return test::error_of<InvalidArgument>(
          [&] { Zero(std::vector<at::Tensor>{weight}, options, zero); });
    };
    EXPECT_THAT(text_of(at::kBFloat16, SGDOptions(0.1), {true, true, 0}),
                HasSubstr("stochastic_rounding was combined with master weights."));
    EXPECT_THAT(text_of(at::kHalf, SGDOptions(0.1), kStochastic),
                HasSubstr("has dtype float16, and stochastic_rounding is on."));
    for (const MasterWeightOptions& masters : {kNearest, kStochastic}) {
      EXPECT_THAT(text_of(at::kBFloat16, torch::optim::RMSpropOptions(0.1), masters),
                  HasSubstr("master_weights=false was passed to an optimizer that is not fused."));
    }
    HalfRank rank(group, SGDOptions(0.1), kNearest);
    EXPECT_THAT(test::error_of<InvalidArgument>([&] { rank.optimizer->engine().begin_step(""); }),
                HasSubstr("master_weights=false was passed to an optimizer that is not fused."));
  });
}

TEST(MasterWeightOptions, AreTheSameOnEveryRank) {
  run_replicas("farandole", 2, [](const Group& group) {
    const MasterWeightOptions masters{false, true, static_cast<uint64_t>(group->getRank())};
    HalfRank rank(group, SGDOptions(0.1), masters);
    EXPECT_THAT(test::error_of<StepError>([&] { rank.train(1, 1); }),
                HasSubstr("rounded stochastically with seed " + std::to_string(group->getRank())));
  });
}

}  // namespace
}  // namespace farandole
