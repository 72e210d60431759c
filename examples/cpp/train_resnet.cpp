// SPDX-License-Identifier: Apache-2.0
// Trains a ResNet on images, as the recipes for large batches do:
//
//   farandole run -n 2 build/examples/train_resnet --model resnet18 --image-size 32  # shapes
//   farandole run -n 8 build/examples/train_resnet --data imagenet --batch 2048 --precision bf16
//
// --data is a folder with `train` and `val`, which have a folder for each class; its images are
// decoded by OpenCV, if CMake has found it. To train on other data, replace load_data().
// examples/python/train_resnet.py is the same program in Python, says more about the recipe, and
// has the same losses on shapes, but for rounding. Each goes on from checkpoints of the other.
#include <c10/core/DeviceGuard.h>
#include <farandole/farandole.h>
#include <torch/data.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "batch_check.h"
#include "crops.h"
#include "early_stopping.h"
#include "flags.h"
#include "image_folder.h"
#include "resnet.h"
#include "resume_check.h"
#include "shapes.h"
#include "training_log.h"

using at::Tensor;

constexpr int64_t kLarsBatch = 8192;  // images of a step, from which on SGD is replaced
constexpr double kStaticScale = 1024;

/// The command line.
Flags read_flags(int argc, char** argv) {
  return Flags(
      argc, argv, "Trains a ResNet on images, as the recipes for large batches do.",
      {{"data", "", "folder with train/CLASS/NAME and val/CLASS/NAME; default: shapes"},
       {"shapes", "4096", "images to learn from, without --data"},
       {"model",
        "resnet50",
        "resnet18, resnet34 or resnet50",
        {"resnet18", "resnet34", "resnet50"}},
       {"image-size", "224", "width and height of an image in pixels"},
       {"batch", "256", "images in a step of all ranks"},
       {"epochs", "90", "passes through the data"},
       {"warm-up", "5", "epochs in which the learning rate rises"},
       {"schedule",
        "cosine",
        "learning rate after the warm-up: cosine or polynomial",
        {"cosine", "polynomial"}},
       {"optimizer",
        "",
        "sgd or lars; else lars for batches of 8192 images or more",
        {"", "sgd", "lars"}},
       {"lr", "0", "peak learning rate; 0: 0.1 for 256 images, with LARS 10 for 8192"},
       {"weight-decay", "1e-4", "weight decay, of weights only"},
       {"smoothing", "0.1", "smoothing of the labels"},
       {"precision",
        "fp32",
        "precision of convolutions: fp32, bf16 or fp16",
        {"fp32", "bf16", "fp16"}},
       {"loss-scale", "dynamic", "loss scale of fp16: dynamic or static", {"dynamic", "static"}},
       {"workers", "2", "threads of each rank that load images"},
       {"patience", "0", "epochs without a better top-1; 0: all epochs"},
       {"output", "build/resnet", "folder for checkpoints and log.csv"},
       {"log-every", "20", "steps between rows of the log; 0: none"},
       {"stop-at", "0", "save and exit after this step; 0: run to the end"},
       {"seed", "0", "seed of weights and of the order of images"}});
}

/// Images to learn from and images to test with. Replace this by your own.
std::pair<Crops, Crops> load_data(const Flags& flags) {
  const int64_t size = flags.integer("image-size"), side = size * 8 / 7;
  if (const std::string& data = flags.text("data"); !data.empty()) {
    const auto train = std::make_shared<ImageFolder>(data + "/train");
    const auto test = std::make_shared<ImageFolder>(data + "/val");
    if (train->names() != test->names()) {
      throw std::runtime_error(data + "/train and " + data + "/val have different classes.");
    }
    return {Crops(train, size, 0.08), Crops(test, size)};
  }
  const auto count = static_cast<size_t>(flags.integer("shapes"));
  return {Crops(std::make_shared<Shapes>(count, side, 0), size, 0.5),
          Crops(std::make_shared<Shapes>(count / 4, side, 1), size)};
}

/// Weights, then vectors, which have no weight decay.
template <class Options>
std::vector<torch::optim::OptimizerParamGroup> parameter_groups(const ResNet& net,
                                                                Options options) {
  std::vector<Tensor> weights, vectors;
  for (const Tensor& p : net.parameters()) (p.dim() > 1 ? weights : vectors).push_back(p);
  auto undecayed = std::make_unique<Options>(options);
  undecayed->weight_decay(0);
  return {{weights, std::make_unique<Options>(options)}, {vectors, std::move(undecayed)}};
}

/// SGD, or LARS (arXiv:1708.03888) for large batches, which the sharded optimizer has.
std::unique_ptr<torch::optim::Optimizer> new_optimizer(const ResNet& net, const Flags& flags) {
  const int64_t batch = flags.integer("batch");
  const std::string& name = flags.text("optimizer");
  const double decay = flags.number("weight-decay"), lr = flags.number("lr");
  if (name == "lars" || (name.empty() && batch >= kLarsBatch)) {
    farandole::LarsOptions options(lr > 0 ? lr
                                          : farandole::linear_scaled_lr(10, batch, kLarsBatch));
    options.momentum(0.9).nesterov(true).weight_decay(decay);
    return std::make_unique<farandole::ZeroRedundancyOptimizer>(parameter_groups(net, options),
                                                                options);
  }
  torch::optim::SGDOptions options(lr > 0 ? lr : farandole::linear_scaled_lr(0.1, batch));
  options.momentum(0.9).nesterov(true).weight_decay(decay);
  return std::make_unique<torch::optim::SGD>(parameter_groups(net, options), options);
}

/// A line up, then a curve down to 0. It counts steps.
std::unique_ptr<farandole::SequentialLR> new_scheduler(torch::optim::Optimizer& optimizer,
                                                       const Flags& flags, int64_t epoch_steps) {
  const int64_t warm_up = std::max<int64_t>(flags.integer("warm-up") * epoch_steps, 1);
  const int64_t rest = std::max<int64_t>(flags.integer("epochs") * epoch_steps - warm_up, 1);
  const auto rise =
      farandole::schedule_of<farandole::LinearLR>(1.0 / static_cast<double>(warm_up), 1.0, warm_up);
  const auto fall = flags.text("schedule") == "polynomial"
                        ? farandole::schedule_of<farandole::PolynomialLR>(rest, 2.0)
                        : farandole::schedule_of<farandole::CosineAnnealingLR>(rest);
  return std::make_unique<farandole::SequentialLR>(
      optimizer, std::vector<farandole::LRSchedulerFactory>{rise, fall}, std::vector{warm_up});
}

/// The parts of a training. All ranks call its methods.
class Trainer {
 public:
  explicit Trainer(const Flags& flags)
      : flags_(flags),
        data_(checked(load_data(flags), flags.integer("batch"))),
        batch_(flags.integer("batch") / farandole::world_size()),
        epoch_steps_(static_cast<int64_t>(*data_.first.size()) / flags.integer("batch")),
        sampler_(*data_.first.size(), train_sampling()),
        net_(new_net()),
        model_(net_),
        optimizer_(new_optimizer(*net_, flags)),
        scheduler_(new_scheduler(*optimizer_, flags, epoch_steps_)),
        early_stopping_{flags.integer("patience")} {
    training_.model = net_.get();
    training_.optimizer = optimizer_.get();
    training_.scheduler = scheduler_.get();
    training_.scaler = &scaler_;
    training_.sampler = &sampler_;
    if (auto found = farandole::resume_or_start(checkpoints_, training_)) {
      check_steps(found->at("steps").toInt(), steps());
      step_ = found->at("step").toInt();
      early_stopping_.best = found->at("best").toDouble();
      early_stopping_.since_best = found->at("since_best").toInt();
    }
  }

  /// From where the last checkpoint was saved to the end. Returns the program's status.
  int train() {
    const std::string folder = farandole::rank() == 0 ? flags_.text("output") : "";
    TrainingLog log(folder, {"loss", "lr", "images_per_s", "test_loss", "top1", "top5"}, step_,
                    steps(), epoch_steps_);
    const auto epochs = static_cast<size_t>(flags_.integer("epochs"));
    for (size_t epoch = sampler_.epoch(); epoch < epochs; ++epoch) {
      if (!train_epoch(epoch, log)) return was_preempted_ ? preemption_.end() : 0;
      const auto metrics = evaluate();
      log.write(step_, metrics);
      const bool stop = early_stopping_.should_stop(metrics[1].second);
      sampler_.set_epoch(stop ? epochs : epoch + 1);
      save(0);
      if (stop) break;
    }
    return 0;
  }

 private:
  using Clock = std::chrono::steady_clock;

  farandole::DistributedSamplerOptions train_sampling() const {
    farandole::DistributedSamplerOptions options;
    options.seed = static_cast<uint64_t>(flags_.integer("seed"));
    options.drop_last = true;
    return options;
  }

  std::shared_ptr<ResNet> new_net() const {
    torch::manual_seed(static_cast<uint64_t>(flags_.integer("seed")));
    auto net = std::make_shared<ResNet>(flags_.text("model"), data_.first.classes());
    net->to(device_);
    return net;
  }

  farandole::GradScalerOptions scaling() const {
    farandole::GradScalerOptions options;
    if (flags_.text("loss-scale") == "static") options.init_scale = kStaticScale;
    options.enabled = flags_.text("precision") == "fp16";
    return options;
  }

  template <class Sampler>
  auto loader_of(const Crops& data, const Sampler& sampler, bool drop_last) const {
    const auto options = torch::data::DataLoaderOptions(static_cast<size_t>(batch_))
                             .workers(static_cast<size_t>(flags_.integer("workers")))
                             .drop_last(drop_last);
    return torch::data::make_data_loader(Crops(data).map(torch::data::transforms::Stack<>()),
                                         sampler, options);
  }

  /// Of the whole training.
  int64_t steps() const { return flags_.integer("epochs") * epoch_steps_; }

  /// `taken`: steps since the pass through the data began.
  void save(int64_t taken) {
    training_.consumed = static_cast<size_t>(taken * batch_);
    farandole::SaveCheckpointOptions options;
    options.values = {{"step", step_},
                      {"steps", steps()},
                      {"best", early_stopping_.best},
                      {"since_best", early_stopping_.since_best}};
    options.step = step_;
    options.keep = 2;
    farandole::save_checkpoint(checkpoints_, training_, options);
  }

  /// In float32; convolutions run in what --precision says.
  template <class Net>
  Tensor scores_of(Net& net, const Tensor& images) {
    const std::string& precision = flags_.text("precision");
    const auto dtype = precision == "fp16" ? at::kHalf : at::kBFloat16;
    const farandole::Autocast autocast(device_.type(), dtype, precision != "fp32");
    return net.forward(images.to(device_)).to(at::kFloat);
  }

  /// Returns the loss of this rank's images.
  Tensor train_step(const torch::data::Example<>& batch) {
    const Tensor scores = scores_of(model_, batch.data);
    const Tensor loss =
        at::cross_entropy_loss(scores, batch.target.to(device_), {}, at::Reduction::Mean, -100,
                               flags_.number("smoothing"));
    optimizer_->zero_grad();
    scaler_.scale(loss).backward();
    scaler_.step(*optimizer_);
    const bool is_static = flags_.text("loss-scale") == "static" && scaler_.is_enabled();
    scaler_.update(is_static ? std::optional(kStaticScale) : std::nullopt);
    scheduler_->step();
    ++step_;
    return loss.detach();
  }

  /// What is left of the epoch. False if the training must end.
  bool train_epoch(size_t epoch, const TrainingLog& log) {
    sampler_.set_epoch(epoch);
    data_.first.set_epoch(epoch);
    model_.train();
    const int64_t log_every = flags_.integer("log-every");
    int64_t since = step_, taken = 0;
    auto start = Clock::now();
    const auto loader = loader_of(data_.first, sampler_, /*drop_last=*/true);
    for (const auto& batch : *loader) {
      const double lr = scheduler_->get_last_lr()[0];
      const Tensor loss = train_step(batch);
      ++taken;
      if (log_every > 0 && step_ % log_every == 0) {
        farandole::all_reduce(loss, {c10d::ReduceOp::AVG});
        const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
        const auto images = static_cast<double>((step_ - since) * flags_.integer("batch"));
        log.write(step_,
                  {{"loss", loss.item<double>()}, {"lr", lr}, {"images_per_s", images / seconds}});
        since = step_;
        start = Clock::now();
      }
      was_preempted_ = preemption_.requested();
      if (was_preempted_ || step_ == flags_.integer("stop-at")) {
        save(taken);
        return false;
      }
    }
    return true;
  }

  /// Loss and accuracies over all test images.
  std::vector<std::pair<std::string, double>> evaluate() {
    const at::NoGradGuard no_grad;
    for (const Tensor& buffer : net_->buffers()) {  // each rank has normalized batches of its own
      if (buffer.is_floating_point()) farandole::all_reduce(buffer, {c10d::ReduceOp::AVG});
    }
    net_->eval();
    farandole::DistributedSamplerOptions exact;  // each image once, whatever the number of ranks
    exact.shuffle = false;
    exact.even_divisible = false;
    const farandole::DistributedSampler sampler(*data_.second.size(), exact);
    Tensor sums = at::zeros({4}, at::kDouble);  // loss, first, among the first 5, images
    const auto loader = loader_of(data_.second, sampler, /*drop_last=*/false);
    for (const auto& batch : *loader) {
      const Tensor scores = scores_of(*net_, batch.data).cpu();
      const Tensor best = std::get<1>(scores.topk(std::min<int64_t>(5, scores.size(1))));
      const Tensor hits = best.eq(batch.target.unsqueeze(1));
      const Tensor loss = at::cross_entropy_loss(scores, batch.target, {}, at::Reduction::Sum);
      sums +=
          at::stack({loss.to(at::kDouble), hits.select(1, 0).sum().to(at::kDouble),
                     hits.sum().to(at::kDouble), at::scalar_tensor(scores.size(0), at::kDouble)});
    }
    farandole::all_reduce(sums);
    const auto mean = [&](int64_t i) { return (sums[i] / sums[3]).item<double>(); };
    return {{"test_loss", mean(0)}, {"top1", mean(1)}, {"top5", mean(2)}};
  }

  const Flags& flags_;
  const at::Device device_ =
      at::hasCUDA() ? at::Device(at::kCUDA, static_cast<int8_t>(farandole::local_rank()))
                    : at::Device(at::kCPU);
  const c10::DeviceGuard guard_{device_};
  std::pair<Crops, Crops> data_;  // to learn from, to test with
  int64_t batch_;                 // images of this rank in a step
  int64_t epoch_steps_;
  farandole::DistributedSampler sampler_;
  std::shared_ptr<ResNet> net_;
  farandole::DistributedDataParallel<ResNet> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  std::unique_ptr<farandole::SequentialLR> scheduler_;
  farandole::GradScaler scaler_{scaling()};
  EarlyStopping early_stopping_;
  farandole::CheckpointOnSignal preemption_;
  farandole::Training training_;
  std::string checkpoints_ = flags_.text("output") + "/checkpoints";
  int64_t step_ = 0;
  bool was_preempted_ = false;
};

int main(int argc, char** argv) {
  try {
    const Flags flags = read_flags(argc, argv);
    farandole::init_process_group();
    return Trainer(flags).train();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
