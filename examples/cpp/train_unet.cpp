// SPDX-License-Identifier: Apache-2.0
// Trains a U-Net to tell what each pixel of an image belongs to:
//
//   farandole run -n 2 build/examples/train_unet --image-size 48 --epochs 12  # shapes
//   farandole run -n 8 build/examples/train_unet --data FOLDER --classes 21 --precision bf16
//
// --data is a folder with `train` and `val`, which have `images` and `masks` of the same names; see
// mask_folder.h. To train on other data, replace load_data(). examples/python/train_unet.py is the
// same program in Python and says more; each goes on from checkpoints of the other.
#include <c10/core/DeviceGuard.h>
#include <farandole/farandole.h>
#include <torch/data.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "batch_check.h"
#include "early_stopping.h"
#include "flags.h"
#include "flips.h"
#include "mask_folder.h"
#include "resume_check.h"
#include "shapes.h"
#include "training_log.h"
#include "unet.h"

using at::Tensor;

/// The command line.
Flags read_flags(int argc, char** argv) {
  return Flags(argc, argv, "Trains a U-Net to tell what each pixel of an image belongs to.",
               {{"data", "", "folder with train and val, which have images and masks"},
                {"classes", "2", "number of classes in --data, including the background"},
                {"shapes", "2048", "images to learn from, without --data"},
                {"image-size", "256", "width and height of an image in pixels, a multiple of 8"},
                {"width", "16", "channels at full resolution"},
                {"batch", "16", "images in a step of all ranks"},
                {"epochs", "50", "passes through the data"},
                {"lr", "3e-3", "initial learning rate; it falls to 0"},
                {"weight-decay", "1e-2", "weight decay, of all parameters"},
                {"precision", "fp32", "precision of convolutions: fp32 or bf16", {"fp32", "bf16"}},
                {"workers", "2", "threads of each rank that load images"},
                {"patience", "0", "epochs without a better IoU; 0: all epochs"},
                {"output", "build/unet", "folder for checkpoints and log.csv"},
                {"log-every", "20", "steps between rows of the log; 0: none"},
                {"stop-at", "0", "save and exit after this step; 0: run to the end"},
                {"seed", "0", "seed of weights and of the order of images"}});
}

/// Images to learn from and images to test with. Replace this by your own.
std::pair<Flips, Flips> load_data(const Flags& flags) {
  const int64_t size = flags.integer("image-size");
  if (const std::string& data = flags.text("data"); !data.empty()) {
    const int64_t classes = flags.integer("classes");
    return {Flips(std::make_shared<MaskFolder>(data + "/train", size, classes), true),
            Flips(std::make_shared<MaskFolder>(data + "/val", size, classes), false)};
  }
  const auto count = static_cast<size_t>(flags.integer("shapes"));
  return {Flips(std::make_shared<ShapeMasks>(count, size, 0), true),
          Flips(std::make_shared<ShapeMasks>(count / 4, size, 1), false)};
}

/// Pixels of a class that are found, in its pixels and those taken for it; mean over classes.
/// `confusion`: pixels by true and by found class. Classes without a pixel do not count.
double mean_iou(const Tensor& confusion) {
  const Tensor both = confusion.diag();
  const Tensor either = confusion.sum(0) + confusion.sum(1) - both;
  const Tensor is_there = either > 0;
  return (both.index({is_there}) / either.index({is_there})).mean().item<double>();
}

farandole::AdamWOptions adamw(const Flags& flags) {
  farandole::AdamWOptions options(flags.number("lr"));
  return options.weight_decay(flags.number("weight-decay"));
}

/// The parts of a training. All ranks call its methods.
class Trainer {
 public:
  explicit Trainer(const Flags& flags)
      : flags_(flags),
        data_(checked(load_data(flags), flags.integer("batch"))),
        batch_(flags.integer("batch") / farandole::world_size()),
        sampler_(*data_.first.size(), train_sampling()),
        net_(new_net()),
        model_(net_),
        optimizer_(model_, adamw(flags)),
        scheduler_(optimizer_, steps(), 0.9),
        early_stopping_{flags.integer("patience")} {
    training_.model = net_.get();
    training_.optimizer = &optimizer_;
    training_.scheduler = &scheduler_;
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
    TrainingLog log(folder, {"loss", "lr", "images_per_s", "test_loss", "accuracy", "mean_iou"},
                    step_, steps(), epoch_steps());
    const auto epochs = static_cast<size_t>(flags_.integer("epochs"));
    for (size_t epoch = sampler_.epoch(); epoch < epochs; ++epoch) {
      if (!train_epoch(epoch, log)) return was_preempted_ ? preemption_.end() : 0;
      const auto metrics = evaluate();
      log.write(step_, metrics);
      const bool stop = early_stopping_.should_stop(metrics[2].second);
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

  std::shared_ptr<UNet> new_net() const {
    torch::manual_seed(static_cast<uint64_t>(flags_.integer("seed")));
    auto net = std::make_shared<UNet>(data_.first.classes(), flags_.integer("width"));
    net->to(device_);
    return net;
  }

  int64_t epoch_steps() const {
    return static_cast<int64_t>(*data_.first.size()) / flags_.integer("batch");
  }

  int64_t steps() const { return std::max<int64_t>(flags_.integer("epochs") * epoch_steps(), 1); }

  template <class Sampler>
  auto loader_of(const Flips& data, const Sampler& sampler, bool drop_last) const {
    const auto options = torch::data::DataLoaderOptions(static_cast<size_t>(batch_))
                             .workers(static_cast<size_t>(flags_.integer("workers")))
                             .drop_last(drop_last);
    return torch::data::make_data_loader(Flips(data).map(torch::data::transforms::Stack<>()),
                                         sampler, options);
  }

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
    const bool mixed = flags_.text("precision") == "bf16";
    const farandole::Autocast autocast(device_.type(), at::kBFloat16, mixed);
    return net.forward(images.to(device_)).to(at::kFloat);
  }

  /// Returns the loss of this rank's images.
  Tensor train_step(const torch::data::Example<>& batch) {
    const Tensor scores = scores_of(model_, batch.data);
    const Tensor loss = at::cross_entropy_loss(scores, batch.target.to(device_));
    optimizer_.zero_grad();
    loss.backward();
    optimizer_.step();
    scheduler_.step();
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
      const double lr = scheduler_.get_last_lr()[0];
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

  /// Loss, share of pixels that are right, and mean IoU over all test images.
  std::vector<std::pair<std::string, double>> evaluate() {
    const at::NoGradGuard no_grad;
    net_->eval();
    farandole::DistributedSamplerOptions exact;  // each image once, whatever the number of ranks
    exact.shuffle = false;
    exact.even_divisible = false;
    const farandole::DistributedSampler sampler(*data_.second.size(), exact);
    const int64_t classes = data_.second.classes();
    const Tensor confusion = at::zeros({classes, classes}, at::kDouble);
    const Tensor loss = at::zeros({}, at::kDouble);
    const auto loader = loader_of(data_.second, sampler, /*drop_last=*/false);
    for (const auto& batch : *loader) {
      const Tensor scores = scores_of(*net_, batch.data).cpu();
      loss.add_(at::cross_entropy_loss(scores, batch.target, {}, at::Reduction::Sum));
      const Tensor pairs = (batch.target * classes + scores.argmax(1)).flatten();
      confusion.add_(pairs.bincount({}, classes * classes).view({classes, classes}));
    }
    farandole::all_reduce(confusion);
    farandole::all_reduce(loss);
    const Tensor pixels = confusion.sum();
    return {{"test_loss", (loss / pixels).item<double>()},
            {"accuracy", (confusion.trace() / pixels).item<double>()},
            {"mean_iou", mean_iou(confusion)}};
  }

  const Flags& flags_;
  const at::Device device_ =
      at::hasCUDA() ? at::Device(at::kCUDA, static_cast<int8_t>(farandole::local_rank()))
                    : at::Device(at::kCPU);
  const c10::DeviceGuard guard_{device_};
  std::pair<Flips, Flips> data_;  // to learn from, to test with
  int64_t batch_;                 // images of this rank in a step
  farandole::DistributedSampler sampler_;
  std::shared_ptr<UNet> net_;
  farandole::DistributedDataParallel<UNet> model_;
  // Each rank keeps the state of its shard of the parameters, and updates that for all.
  farandole::ZeroRedundancyOptimizer optimizer_;
  farandole::PolynomialLR scheduler_;
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
