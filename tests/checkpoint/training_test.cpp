// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/rmsprop.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <utility>
#include <vector>

#include "farandole/checkpoint/load_checkpoint.h"
#include "farandole/checkpoint/save_checkpoint.h"
#include "farandole/data/distributed_sampler.h"
#include "farandole/error.h"
#include "farandole/optim/lr_scheduler/formula_scheduler.h"
#include "farandole/optim/lr_scheduler/reduce_lr_on_plateau.h"
#include "farandole/optim/lr_scheduler/step_lr.h"
#include "farandole/optim/zero_redundancy_optimizer.h"
#include "optim/bowl.h"

namespace farandole {
namespace {

namespace optim = torch::optim;

using test::Bowl;
using test::bowl;
using test::run_replicas;
using testing::HasSubstr;

using Zero = ZeroRedundancyOptimizer;
using Ddp = DistributedDataParallel<Bowl>;

/// A folder for each test.
class TrainingCheckpoint : public testing::Test {
 protected:
  void SetUp() override {
    const auto* const test = testing::UnitTest::GetInstance()->current_test_info();
    path_ = testing::TempDir() + "farandole-" + test->name();
    std::filesystem::remove_all(path_);
  }
  void TearDown() override { std::filesystem::remove_all(path_); }

  std::string path_;
};

const std::vector<test::BowlWeight> kHalves = {
    {{33, 17}, at::kBFloat16}, {{129}}, {{6}, at::kHalf}};

/// What one rank trains: the same data everywhere, so that any number of ranks has the same bits.
struct Rank {
  std::shared_ptr<Bowl> model;
  std::unique_ptr<Ddp> ddp;
  std::unique_ptr<optim::Optimizer> optimizer;
  Training training;

  Rank(const Group& group, const optim::OptimizerOptions& options, GradientMode mode,
       const std::vector<test::BowlWeight>& specs = test::kOddWeights)
      : model(bowl(specs)), ddp(std::make_unique<Ddp>(model, group)) {
    ZeroOptions zero;
    zero.gradients = mode;
    optimizer = std::make_unique<Zero>(*ddp, options, zero);
    describe();
  }
  /// Without shards, by a function that makes the optimizer of the parameters.
  template <class Make>
  Rank(const Group& group, const Make& make)
      : model(bowl(test::kOddWeights)), ddp(std::make_unique<Ddp>(model, group)) {
    optimizer = make(model->parameters());
    describe();
  }
  void describe() {
    training.model = model.get();
    training.optimizer = optimizer.get();
  }
  void step(int number) {
    optimizer->zero_grad();
    ddp->forward(0, number).backward();
    optimizer->step();
  }
  std::vector<at::Tensor> weights() const {
    std::vector<at::Tensor> copies;
    for (const at::Tensor& weight : model->weights) copies.push_back(weight.detach().clone());
    return copies;
  }
};

void expect_same(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::equal(found[i], wanted[i])) << "weight " << i;
  }
}

/// But for the rounding of sums over other numbers of ranks.
void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& wanted) {
  ASSERT_EQ(found.size(), wanted.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_TRUE(at::allclose(found[i], wanted[i], 1e-5, 1e-6)) << "weight " << i;
  }
}

SaveCheckpointOptions on(const Group& group) {
  SaveCheckpointOptions options;
  options.group = group;
  return options;
}

LoadCheckpointOptions from(const Group& group) {
  LoadCheckpointOptions options;
  options.group = group;
  return options;
}

std::vector<std::shared_ptr<optim::OptimizerOptions>> all_options() {
  return {std::make_shared<SGDOptions>(SGDOptions(0.125).momentum(0.5)),
          std::make_shared<SGDOptions>(0.125),
          std::make_shared<AdamOptions>(AdamOptions(0.05).amsgrad(true)),
          std::make_shared<AdamWOptions>(0.05),
          std::make_shared<LambOptions>(0.05),
          std::make_shared<LarsOptions>(0.05),
          std::make_shared<optim::RMSpropOptions>(0.05),
          std::make_shared<optim::AdagradOptions>(0.1)};
}

TEST_F(TrainingCheckpoint, GoesOnWithAnyNumberOfRanks) {
  int folder = 0;
  for (const auto& options : all_options()) {
    for (const auto& ranks : {std::pair(4, 2), std::pair(1, 4), std::pair(2, 8)}) {
      const int before = ranks.first;
      const int after = ranks.second;
      const std::string path = path_ + "/" + std::to_string(folder++);
      const bool shards = folder % 2 == 0;
      std::vector<at::Tensor> wanted;
      run_replicas("shm", before, [&](const Group& group) {
        Rank rank(group, *options, shards ? GradientMode::kShard : GradientMode::kFull);
        for (int step = 0; step < 3; ++step) rank.step(step);
        save_checkpoint(path, rank.training, on(group)).wait();
        for (int step = 3; step < 5; ++step) rank.step(step);
        if (group->getRank() == 0) wanted = rank.weights();
      });
      run_replicas("shm", after, [&](const Group& group) {
        Rank rank(group, *options, shards ? GradientMode::kFull : GradientMode::kShard);
        rank.step(7);  // what there is goes
        load_checkpoint(path, rank.training, from(group));
        for (int step = 3; step < 5; ++step) rank.step(step);
        SCOPED_TRACE(path + ": " + std::to_string(before) + " to " + std::to_string(after));
        expect_close(rank.weights(), wanted);
      });
    }
  }
}

TEST_F(TrainingCheckpoint, KeepsMasterWeights) {
  std::vector<at::Tensor> wanted;
  const AdamWOptions options(0.001);
  run_replicas("shm", 2, [&](const Group& group) {
    Rank rank(group, options, GradientMode::kFull, kHalves);
    for (int step = 0; step < 3; ++step) rank.step(step);
    save_checkpoint(path_, rank.training, on(group));
    for (int step = 3; step < 9; ++step) rank.step(step);
    if (group->getRank() == 0) wanted = rank.weights();
  });
  run_replicas("shm", 4, [&](const Group& group) {
    Rank rank(group, options, GradientMode::kShard, kHalves);
    load_checkpoint(path_, rank.training, from(group));
    for (int step = 3; step < 9; ++step) rank.step(step);
    expect_same(rank.weights(), wanted);
  });
}

TEST_F(TrainingCheckpoint, LeavesShardsForPlainOptimizersAndBack) {
  const auto plain = [](std::vector<at::Tensor> parameters) {
    return std::make_unique<optim::SGD>(std::move(parameters), SGDOptions(0.125).momentum(0.5));
  };
  std::vector<at::Tensor> wanted;
  run_replicas("shm", 2, [&](const Group& group) {
    Rank rank(group, SGDOptions(0.125).momentum(0.5), GradientMode::kFull);
    for (int step = 0; step < 2; ++step) rank.step(step);
    save_checkpoint(path_, rank.training, on(group));
    for (int step = 2; step < 6; ++step) rank.step(step);
    if (group->getRank() == 0) wanted = rank.weights();
  });
  run_replicas("shm", 2, [&](const Group& group) {
    Rank rank(group, plain);
    load_checkpoint(path_, rank.training, from(group));
    for (int step = 2; step < 4; ++step) rank.step(step);
    save_checkpoint(path_, rank.training, on(group));
  });
  run_replicas("shm", 4, [&](const Group& group) {
    Rank rank(group, SGDOptions(0.125).momentum(0.5), GradientMode::kShard);
    load_checkpoint(path_, rank.training, from(group));
    for (int step = 4; step < 6; ++step) rank.step(step);
    expect_same(rank.weights(), wanted);
  });
}

TEST_F(TrainingCheckpoint, BringsBackWhatIsBesideModelAndOptimizer) {
  run_replicas("shm", 2, [&](const Group& group) {
    torch::manual_seed(static_cast<uint64_t>(group->getRank()));
    Rank rank(group, SGDOptions(0.5), GradientMode::kFull);
    StepLR scheduler(*rank.optimizer, 2, 0.5);
    GradScaler scaler;
    DistributedSamplerOptions sharing;
    sharing.num_replicas = 2;
    sharing.rank = group->getRank();
    DistributedSampler sampler(20, sharing);
    rank.training.scheduler = &scheduler;
    rank.training.scaler = &scaler;
    rank.training.sampler = &sampler;
    for (int i = 0; i < 3; ++i) scheduler.step();
    GradScalerState scaling = scaler.state();
    scaling.scale = 8;
    scaling.growth_tracker = 3;
    scaler.load_state(scaling);
    rank.training.consumed = 4;
    save_checkpoint(path_, rank.training, on(group));
    const auto state = scheduler.state();

    scheduler.step();
    scaling.scale = 16;
    scaler.load_state(scaling);
    load_checkpoint(path_, rank.training, from(group));
    EXPECT_EQ(scheduler.state(), state);
    EXPECT_EQ(rank.optimizer->param_groups()[0].options().get_lr(), 0.25);
    EXPECT_EQ(scaler.get_scale(), 8);
    EXPECT_EQ(scaler.state().growth_tracker, 3);
    EXPECT_EQ(sampler.state(0).at("position"), 8);
  });
}

TEST_F(TrainingCheckpoint, KnowsScalersThatAreNotEnabled) {
  run_replicas("shm", 2, [&](const Group& group) {
    GradScalerOptions off;
    off.enabled = false;
    GradScaler disabled(off);
    GradScaler enabled;
    Training training;
    training.scaler = &disabled;
    save_checkpoint(path_, training, on(group));
    load_checkpoint(path_, training, from(group));
    training.scaler = &enabled;
    try {
      load_checkpoint(path_, training, from(group));
      ADD_FAILURE() << "loaded";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("the state of a disabled scaler"));
    }
  });
}

TEST_F(TrainingCheckpoint, LeavesASamplerInItsPassIfOneRankRefuses) {
  run_replicas("shm", 2, [&](const Group& group) {
    DistributedSamplerOptions sharing;
    sharing.num_replicas = 2;
    sharing.rank = group->getRank();
    DistributedSampler sampler(40, sharing);
    DistributedSampler other(39, sharing);
    Training training;
    training.sampler = &sampler;
    save_checkpoint(path_, training, on(group));
    sampler.set_epoch(1);
    sampler.next(3);
    const SamplerState state = sampler.state(3);
    if (group->getRank() == 1) training.sampler = &other;
    EXPECT_THROW(load_checkpoint(path_, training, from(group)), Error);
    EXPECT_EQ(sampler.state(3), state);
    EXPECT_EQ(sampler.next(100)->size(), size_t{17});
  });
}

TEST_F(TrainingCheckpoint, KeepsAPlateau) {
  run_replicas("shm", 1, [&](const Group& group) {
    Rank rank(group, SGDOptions(0.5), GradientMode::kFull);
    ReduceLROnPlateauOptions options;
    options.is_max = true;
    options.patience = 1;
    ReduceLROnPlateau scheduler(*rank.optimizer, options);
    rank.training.scheduler = &scheduler;
    for (const bool has_best : {false, true}) {
      if (has_best) scheduler.step(0.5);
      const auto state = scheduler.state();
      save_checkpoint(path_, rank.training, on(group));
      for (int i = 0; i < 4; ++i) scheduler.step(0.25);
      load_checkpoint(path_, rank.training, from(group));
      EXPECT_EQ(scheduler.state(), state);
    }
  });
}

TEST_F(TrainingCheckpoint, BringsBackTheProgramsValues) {
  run_replicas("shm", 1, [&](const Group& group) {
    SaveCheckpointOptions options = on(group);
    c10::Dict<std::string, double> losses;
    losses.insert("train", 0.5);
    losses.insert("!odd", std::numeric_limits<double>::infinity());
    options.values = {{"epoch", int64_t{3}},
                      {"loss", 0.1},
                      {"nan", std::nan("")},
                      {"name", "a \"name\"\n"},
                      {"done", false},
                      {"none", c10::IValue()},
                      {"list", std::vector<int64_t>{1, 2}},
                      {"tuple", std::make_tuple(1.5, std::string("x"))},
                      {"losses", losses},
                      {"scalar", at::scalar_tensor(2.5, at::kHalf)},
                      {"matrix", at::arange(6).view({2, 3}).t()}};
    save_checkpoint(path_, {}, options);
    const CheckpointValues values = load_checkpoint(path_, {}, from(group));
    EXPECT_EQ(values.size(), options.values.size());
    EXPECT_EQ(values.at("epoch").toInt(), 3);
    EXPECT_EQ(values.at("loss").toDouble(), 0.1);
    EXPECT_TRUE(std::isnan(values.at("nan").toDouble()));
    EXPECT_EQ(values.at("name").toStringRef(), "a \"name\"\n");
    EXPECT_FALSE(values.at("done").toBool());
    EXPECT_TRUE(values.at("none").isNone());
    EXPECT_EQ(values.at("list").toIntVector(), (std::vector<int64_t>{1, 2}));
    EXPECT_EQ(values.at("tuple").toTupleRef().elements()[1].toStringRef(), "x");
    EXPECT_TRUE(std::isinf(values.at("losses").toGenericDict().at("!odd").toDouble()));
    EXPECT_TRUE(at::equal(values.at("scalar").toTensor(), at::scalar_tensor(2.5, at::kHalf)));
    EXPECT_TRUE(at::equal(values.at("matrix").toTensor(), at::arange(6).view({2, 3}).t()));
  });
}

TEST_F(TrainingCheckpoint, RefusesValuesThatItCannotHave) {
  run_replicas("shm", 2, [&](const Group& group) {
    SaveCheckpointOptions options = on(group);
    if (group->getRank() == 0) options.values = {{"stream", c10::Stream::unpack3(0, 0, at::kCPU)}};
    try {
      save_checkpoint(path_, {}, options);
      ADD_FAILURE() << "saved";
    } catch (const InvalidArgument& error) {
      EXPECT_EQ(group->getRank(), 0);
      EXPECT_THAT(error.what(), HasSubstr("values/stream of the class Stream"));
    } catch (const CheckpointError& error) {
      EXPECT_EQ(group->getRank(), 1);
      EXPECT_THAT(error.what(), HasSubstr("values/stream of the class Stream"));
    }
    EXPECT_FALSE(resume_or_start(path_, {}, from(group)).has_value());
  });
}

TEST_F(TrainingCheckpoint, ChangesNothingThatDoesNotFitOnOneRank) {
  run_replicas("shm", 2, [&](const Group& group) {
    Rank rank(group, AdamWOptions(0.05), GradientMode::kFull);
    StepLR scheduler(*rank.optimizer, 2, 0.5);
    rank.training.scheduler = &scheduler;
    rank.step(0);
    save_checkpoint(path_, rank.training, on(group));
    for (int step = 1; step < 3; ++step) rank.step(step);
    scheduler.step();
    const auto weights = rank.weights();
    const auto state = scheduler.state();

    const auto expect_refused = [&](const Training& training, const std::string& text) {
      try {
        load_checkpoint(path_, training, from(group));
        ADD_FAILURE() << "loaded";
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
      expect_same(rank.weights(), weights);
      EXPECT_EQ(scheduler.state(), state);
    };
    Training training = rank.training;
    torch::nn::Module other;
    other.register_parameter("weight0", at::zeros({2}));
    if (group->getRank() == 1) training.model = &other;
    expect_refused(training, "weight1' of a model.");
    training = rank.training;
    optim::SGD sgd(rank.model->parameters(), SGDOptions(0.5));
    if (group->getRank() == 1) training.optimizer = &sgd;
    expect_refused(training, "the state of an optimizer AdamW.");
    training = rank.training;
    GradScaler scaler;
    if (group->getRank() == 1) training.scaler = &scaler;
    expect_refused(training, "no state of a scaler.");
    // The optimizer's state is as it was, too.
    rank.step(3);
    Rank again(group, AdamWOptions(0.05), GradientMode::kFull);
    for (int step = 0; step < 4; ++step) again.step(step);
    expect_same(rank.weights(), again.weights());
  });
}

/// Truncates a file when its state is loaded, after tensors were compared with their checksums.
class DamagingScheduler final : public FormulaScheduler {
 public:
  DamagingScheduler(optim::Optimizer& optimizer, std::filesystem::path file)
      : FormulaScheduler(optimizer), file_(std::move(file)) {
    begin();
  }
  int asked = 0;  ///< once before the ranks have agreed that all is whole, then again
  bool is_armed = false;

 protected:
  std::vector<double> get_lr() override { return base_lrs(); }
  void name_fields(SchedulerFields& fields) override {
    FormulaScheduler::name_fields(fields);
    if (!is_armed || ++asked != 2) return;
    std::filesystem::resize_file(file_, std::filesystem::file_size(file_) / 2);
  }

 private:
  const std::filesystem::path file_;
};

TEST_F(TrainingCheckpoint, SaysThatAFileWasDamagedWhileItWasLoaded) {
  run_replicas("shm", 2, [&](const Group& group) {
    torch::nn::Module model;  // files of several blocks, of which none is kept in memory
    model.register_parameter("weight", at::zeros({512, 1024}));
    optim::SGD optimizer(model.parameters(), SGDOptions(0.5));
    DamagingScheduler scheduler(optimizer, path_ + "/save-00000001/rank-0000" +
                                               std::to_string(group->getRank()) +
                                               "-of-00002.safetensors");
    Training training;
    training.model = &model;
    training.optimizer = &optimizer;
    training.scheduler = &scheduler;
    save_checkpoint(path_, training, on(group));
    scheduler.is_armed = group->getRank() == 1;
    try {
      load_checkpoint(path_, training, from(group));
      ADD_FAILURE() << "loaded";
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), HasSubstr("was taken only in part on rank"));
      EXPECT_THAT(error.what(), HasSubstr("shorter"));
    }
    scheduler.is_armed = false;
    save_checkpoint(path_, training, on(group));  // and the group goes on
    load_checkpoint(path_, training, from(group));
  });
}

TEST_F(TrainingCheckpoint, SavesBesideTheTraining) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_replicas("shm", 2, [&](const Group& without_store) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, without_store->getRank(),
                                                               without_store->getSize());
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      without_store->getBackend(at::kCPU));
    Rank rank(group, SGDOptions(0.5).momentum(0.5), GradientMode::kFull);
    SaveCheckpointOptions options = on(group);
    options.asynchronous = true;
    options.keep = 2;
    std::vector<at::Tensor> weights;
    for (int step = 0; step < 6; ++step) {
      rank.step(step);
      options.step = step;
      weights = rank.weights();
      save_checkpoint(path_, rank.training, options);
    }
    rank.step(9);
    load_checkpoint(path_, rank.training, from(group));  // which waits
    expect_same(rank.weights(), weights);
    size_t present = 0;
    for (const auto& each : std::filesystem::directory_iterator(path_)) {
      if (each.path().filename().string().rfind("step-", 0) == 0) ++present;
    }
    EXPECT_EQ(present, 2U);
  });
}

TEST_F(TrainingCheckpoint, EachSaveHasAResultOfItsOwn) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_replicas("shm", 1, [&](const Group& without_store) {
    const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, 0, 1);
    group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                      without_store->getBackend(at::kCPU));
    SaveCheckpointOptions options = on(group);
    options.asynchronous = true;
    std::vector<PendingCheckpoint> pending;
    for (int step = 0; step < 3; ++step) {
      options.step = step;
      pending.push_back(save_checkpoint(path_, {}, options));
    }
    for (int step = 0; step < 3; ++step) {
      EXPECT_THAT(pending[static_cast<size_t>(step)].wait(),
                  testing::EndsWith("step-0000000" + std::to_string(step)));
    }
    // What the program still holds keeps no folder from other groups, nor from other writers.
    for (const char* const folder : {"/a", "/b", "/c", "/d", "/e"}) {
      save_checkpoint(path_ + folder, {}, on(group));
    }
    save_checkpoint(path_, {}, on(without_store));
    save_checkpoint(path_, {}, options).wait();
  });
}

/// Knows what was written to it.
class RecordingStore : public c10d::HashStore {
 public:
  void set(const std::string& key, const std::vector<uint8_t>& data) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      keys_.insert(key);
    }
    HashStore::set(key, data);
  }
  std::set<std::string> taken() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(keys_, {});
  }

 private:
  std::mutex mutex_;
  std::set<std::string> keys_;
};

TEST_F(TrainingCheckpoint, TakesNoAnswersOfRanksThatWereThereBefore) {
  // A store that outlives the ranks, as that of torchrun's agent.
  const auto store = c10::make_intrusive<RecordingStore>();
  std::set<std::string> known;
  for (int attempt = 0; attempt < 2; ++attempt) {
    run_replicas("shm", 2, [&](const Group& without_store) {
      const auto group = c10::make_intrusive<c10d::ProcessGroup>(store, without_store->getRank(),
                                                                 without_store->getSize());
      group->setBackend(at::kCPU, c10d::ProcessGroup::BackendType::CUSTOM,
                        without_store->getBackend(at::kCPU));
      SaveCheckpointOptions options = on(group);
      options.asynchronous = true;
      save_checkpoint(path_, {}, options).wait();
    });
    for (const std::string& key : store->taken()) EXPECT_TRUE(known.insert(key).second) << key;
  }
  EXPECT_GE(known.size(), 8U);  // two rounds of two ranks, each time
}

TEST_F(TrainingCheckpoint, DoesNotBeginAnewOnAWrongPath) {
  run_replicas("shm", 1, [&](const Group& group) {
    std::filesystem::create_directories(path_);
    const auto expect_refused = [&](const std::string& path, const std::string& text) {
      try {
        resume_or_start(path, {}, from(group));
        ADD_FAILURE() << "began anew";
      } catch (const CheckpointError& error) {
        EXPECT_THAT(error.what(), HasSubstr(text));
      }
    };
    EXPECT_FALSE(resume_or_start(path_ + "/later/new", {}, from(group)));
    std::ofstream(path_ + "/.metadata") << "of torch";
    expect_refused(path_, "is one of torch.distributed.checkpoint");
    expect_refused(path_ + "/.metadata", "is a file");
    expect_refused(path_ + "/.metadata/below", "is a file");
  });
}

TEST_F(TrainingCheckpoint, KnowsAFolderByAllItsPaths) {
  run_replicas("shm", 1, [&](const Group& group) {
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::create_directories(path_);
    std::filesystem::current_path(path_);
    for (const std::string& path : {std::string("new"), path_ + "/new/", std::string("./new"),
                                    path_ + "/new", std::string("other/../new")}) {
      save_checkpoint(path, {}, on(group));
    }
    std::filesystem::current_path(before);
    EXPECT_TRUE(std::filesystem::exists(path_ + "/new/save-00000005/index.json"));
  });
}

TEST_F(TrainingCheckpoint, RefusesArgumentsOfOneRankBeforeOthersWait) {
  run_replicas("shm", 2, [&](const Group& group) {
    Rank rank(group, AdamWOptions(0.05), GradientMode::kFull);
    rank.step(0);
    SaveCheckpointOptions options = on(group);
    if (group->getRank() == 1) options.step = -1;
    EXPECT_THROW(save_checkpoint(path_, rank.training, options), Error);
    save_checkpoint(path_, rank.training, on(group));
    rank.step(1);
  });
}

TEST_F(TrainingCheckpoint, RefusesWhatCannotBeLoadedInto) {
  run_replicas("shm", 1, [&](const Group& group) {
    torch::nn::Module model;
    model.register_parameter("weight", at::ones({3}));
    model.register_buffer("mask", at::ones({2, 2}));
    Training training;
    training.model = &model;
    training.optimizer = static_cast<optim::Optimizer*>(nullptr);  // as left out
    save_checkpoint(path_, training, on(group));
    torch::nn::Module expanded;
    const at::Tensor weight = expanded.register_parameter("weight", at::zeros({3}));
    expanded.register_buffer("mask", at::zeros({1, 2}).expand({2, 2}));
    training.model = &expanded;
    EXPECT_THROW(load_checkpoint(path_, training, from(group)), InvalidArgument);
    EXPECT_EQ(weight.sum().item<double>(), 0);
  });
}

TEST_F(TrainingCheckpoint, SavesValuesAndNotViews) {
  run_replicas("shm", 1, [&](const Group& group) {
    const at::Tensor numbers = at::complex(at::ones({2}), at::full({2}, 2.0));
    SaveCheckpointOptions options = on(group);
    options.values = {{"conj", numbers.conj()},
                      {"neg", at::imag(numbers.conj())[0]},
                      {"bytes", std::string("\xff\xfe")}};
    save_checkpoint(path_, {}, options);
    const CheckpointValues values = load_checkpoint(path_, {}, from(group));
    EXPECT_TRUE(at::equal(values.at("conj").toTensor(), numbers.conj().resolve_conj()));
    EXPECT_EQ(values.at("neg").toTensor().item<double>(), -2);
    EXPECT_EQ(values.at("bytes").toStringRef(), "\xff\xfe");

    c10::impl::GenericList nested(c10::AnyType::get());
    c10::IValue inner = nested;
    for (int depth = 0; depth < 300; ++depth) {
      c10::impl::GenericList outer(c10::AnyType::get());
      outer.push_back(inner);
      inner = outer;
      if (depth != 150) continue;
      options.values = {{"nested", inner}};
      save_checkpoint(path_, {}, options);
      load_checkpoint(path_, {}, from(group));
    }
    options.values = {{"nested", inner}};
    EXPECT_THROW(save_checkpoint(path_, {}, options), InvalidArgument);
    options.values = {{"\xff", int64_t{1}}};
    EXPECT_THROW(save_checkpoint(path_, {}, options), InvalidArgument);
  });
}

TEST_F(TrainingCheckpoint, HasTiedParametersOfPlainOptimizersOnce) {
  run_replicas("shm", 2, [&](const Group& group) {
    torch::nn::Module model;
    const at::Tensor weight = model.register_parameter("in", at::ones({3}));
    model.register_parameter("out", weight);
    optim::SGD optimizer(model.parameters(), SGDOptions(0.5).momentum(0.5));
    ASSERT_EQ(optimizer.param_groups()[0].params().size(), 2U);  // LibTorch lists both
    const auto step = [&] {
      weight.mutable_grad() = at::ones({3});
      optimizer.step();
    };
    step();
    Training training;
    training.model = &model;
    training.optimizer = &optimizer;
    save_checkpoint(path_, training, on(group));
    step();
    const at::Tensor wanted = weight.detach().clone();
    load_checkpoint(path_, training, from(group));
    step();
    EXPECT_TRUE(at::equal(weight, wanted));
  });
}

TEST_F(TrainingCheckpoint, RefusesTensorsOfOneName) {
  run_replicas("shm", 3, [&](const Group& group) {
    torch::nn::Module outer;
    auto inner = std::make_shared<torch::nn::Module>();
    inner->register_parameter("weight", at::ones({3}));
    outer.register_module("b", inner);
    Training training;
    training.model = std::map<std::string, torch::nn::Module*>{{"a", &outer}, {"a.b", inner.get()}};
    EXPECT_THROW(save_checkpoint(path_, training, on(group)), Error);
  });
}

TEST_F(TrainingCheckpoint, NeedsAStoreBesideTheTraining) {
  run_replicas("shm", 2, [&](const Group& group) {
    SaveCheckpointOptions options = on(group);
    options.asynchronous = true;
    EXPECT_THROW(save_checkpoint(path_, {}, options), Error);
    options.asynchronous = false;
    save_checkpoint(path_, {}, options);
  });
}

TEST_F(TrainingCheckpoint, GoesOnWithTheSameRandomNumbers) {
  run_replicas("shm", 1, [&](const Group& group) {
    torch::manual_seed(3);
    torch::randn({4});
    save_checkpoint(path_, {}, on(group));
    const at::Tensor wanted = torch::randn({8});
    torch::manual_seed(4);
    load_checkpoint(path_, {}, from(group));
    EXPECT_TRUE(at::equal(torch::randn({8}), wanted));
    LoadCheckpointOptions without = from(group);
    without.rng = false;
    load_checkpoint(path_, {}, without);
    EXPECT_FALSE(at::equal(torch::randn({8}), wanted));
  });
}

TEST_F(TrainingCheckpoint, HasNamedModelsWithTiedWeights) {
  run_replicas("shm", 2, [&](const Group& group) {
    const auto make = [](double value) {
      auto module = std::make_shared<torch::nn::Module>();
      const at::Tensor weight = at::full({3, 2}, value);
      module->register_parameter("in", weight);
      module->register_parameter("out", module->named_parameters()["in"]);
      module->register_buffer("count", at::full({}, value));
      return module;
    };
    const auto a = make(1);
    const auto b = make(2);
    Training training;
    training.model = std::map<std::string, torch::nn::Module*>{{"a", a.get()}, {"b", b.get()}};
    save_checkpoint(path_, training, on(group));
    const c10::NoGradGuard no_grad;
    for (const auto& model : {a, b}) {
      for (const auto& each : model->parameters()) each.zero_();
      for (const auto& each : model->buffers()) each.zero_();
    }
    load_checkpoint(path_, training, from(group));
    EXPECT_EQ(a->named_parameters()["out"].sum().item<double>(), 6);
    EXPECT_EQ(b->named_parameters()["in"].sum().item<double>(), 12);
    EXPECT_EQ(b->named_buffers()["count"].item<double>(), 2);
  });
}

TEST_F(TrainingCheckpoint, LoadsTensorsThatDifferIntoNoTiedOnes) {
  run_replicas("shm", 2, [&](const Group& group) {
    torch::nn::Module apart;
    const at::Tensor in = apart.register_parameter("in", at::full({3}, 1.0));
    const at::Tensor out = apart.register_parameter("out", at::full({3}, 2.0));
    Training training;
    training.model = &apart;
    save_checkpoint(path_, training, on(group));
    torch::nn::Module tied;
    const at::Tensor both = tied.register_parameter("in", at::zeros({3}));
    tied.register_parameter("out", both);
    training.model = &tied;
    EXPECT_THROW(load_checkpoint(path_, training, from(group)), CheckpointError);
    EXPECT_EQ(both.sum().item<double>(), 0);
    {
      const c10::NoGradGuard no_grad;
      out.copy_(in);
    }
    training.model = &apart;
    save_checkpoint(path_, training, on(group));
    training.model = &tied;
    load_checkpoint(path_, training, from(group));
    EXPECT_EQ(both.sum().item<double>(), 3);
  });
}

TEST_F(TrainingCheckpoint, ReadsIntoViewsWithAllTheirSigns) {
  run_replicas("shm", 1, [&](const Group& group) {
    const at::Tensor numbers = at::complex(at::ones({2}), at::full({2}, 2.0));
    torch::nn::Module model;
    const at::Tensor conj = model.register_buffer("conj", numbers.clone().conj());
    const at::Tensor neg = model.register_buffer("neg", at::_neg_view(at::ones({2})));
    Training training;
    training.model = &model;
    save_checkpoint(path_, training, on(group));
    conj.zero_();
    neg.zero_();
    load_checkpoint(path_, training, from(group));
    EXPECT_TRUE(at::equal(conj.resolve_conj(), numbers.conj().resolve_conj()));
    EXPECT_TRUE(at::equal(neg.resolve_neg(), at::full({2}, -1.0)));
  });
}

TEST_F(TrainingCheckpoint, RefusesPathsThatDiffer) {
  run_replicas("shm", 2, [&](const Group& group) {
    const std::string own = path_ + "/of-" + std::to_string(group->getRank());
    EXPECT_THROW(save_checkpoint(own, {}, on(group)), InvalidArgument);
    EXPECT_THROW(load_checkpoint(own, {}, from(group)), InvalidArgument);
    EXPECT_FALSE(std::filesystem::exists(own));
    save_checkpoint(path_, {}, on(group));
  });
}

TEST_F(TrainingCheckpoint, RefusesANameThatItsFilesHave) {
  run_replicas("shm", 1, [&](const Group& group) {
    torch::nn::Module model;
    model.register_parameter("__metadata__", at::ones({3}));
    Training training;
    training.model = &model;
    EXPECT_THROW(save_checkpoint(path_, training, on(group)), Error);
    EXPECT_FALSE(std::filesystem::exists(path_ + "/latest"));
  });
}

}  // namespace
}  // namespace farandole
