// SPDX-License-Identifier: Apache-2.0
// Distils a Vision Transformer into a smaller one, with its optimizer sharded, in bfloat16:
//
//   python examples/python/train_vit_distillation.py --export digits.bin  # needs scikit-learn
//   ./train_vit_distillation digits.bin [SEED [STEPS [CHECKPOINTS]]]             # 1 rank
//   torchrun --nproc-per-node 2 --no-python ./train_vit_distillation digits.bin  # 2 ranks
//
// examples/python/train_vit_distillation.py is the same program, and what it prints but for times
// is the same to the last digit; each goes on from checkpoints of the other, if SEED and STEPS are
// the same.
//
// A teacher learns from 1297 images and their classes. Then one student is trained twice, from the
// same weights and for as many steps: alone, on the first 100 images and their classes; distilled,
// on the same batches of these, and on as many images again out of all 1297, of which it is told
// not the class but how the teacher scores them. So the distilled student is told no more classes,
// but it sees more images, and its teacher was told more classes. That is what distillation is for,
// and why it wins here; were the students told all 1297 classes, there would be little left to win.
//
// One function trains all three: each step's batch is shared out over the ranks,
// DistributedDataParallel averages gradients, ZeroRedundancyOptimizer lets each rank update a part
// of the parameters for all, and Autocast runs matrix products in bfloat16.
//
// DIGITS_FILE has 1797 rows of 65 bytes and nothing else: 8 x 8 pixels of an image, each 0 to 16,
// then its class, 0 to 9. The last 500 images are to test.
#include <farandole/farandole.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "progress.h"

namespace nn = torch::nn;
namespace functional = torch::nn::functional;
using at::Tensor;

constexpr int64_t kTrainImages = 1297, kTestImages = 500;
constexpr int64_t kToldImages = 100;  // whose classes the students are told: the first ones
constexpr int64_t kPixels = 8 * 8;    // of an image as it comes
constexpr int64_t kClasses = 10;

constexpr int64_t kSide = 32, kPatch = 8;  // pixels of an enlarged image, of a patch; one way
constexpr int64_t kHeads = 4;
constexpr int64_t kTeacherWidth = 64, kTeacherLayers = 2;
constexpr int64_t kStudentWidth = 32, kStudentLayers = 1;

constexpr int kSteps = 200;  // unless the command line tells another number
constexpr int kWarmUp = 20;  // steps
constexpr int kStepsPerCheckpoint = 50;
constexpr int kStepsPerLine = 50;
constexpr int64_t kBatch = 48;          // images with classes in a step, over all ranks
constexpr double kLearningRate = 3e-3;  // at its peak
constexpr double kTemperature = 4;
constexpr double kSoft = 0.9;  // weight of what the teacher says; the rest is for the classes

/// A product and a sum in one operation, as in Python. LibTorch's own makes two, of which each is
/// rounded to bfloat16.
struct LinearImpl : nn::LinearImpl {
  using nn::LinearImpl::LinearImpl;
  Tensor forward(const Tensor& x) { return at::linear(x, weight, bias); }
};
TORCH_MODULE(Linear);

/// Attention between patches, then a perceptron.
struct Block : nn::Module {
  nn::LayerNorm attention_norm;
  Linear query_key_value, project;
  nn::LayerNorm perceptron_norm;
  Linear widen, narrow;

  explicit Block(int64_t width)
      : attention_norm(nn::LayerNormOptions({width})),
        query_key_value(width, 3 * width),
        project(width, width),
        perceptron_norm(nn::LayerNormOptions({width})),
        widen(width, 4 * width),
        narrow(4 * width, width) {
    register_module("attention_norm", attention_norm);
    register_module("query_key_value", query_key_value);
    register_module("project", project);
    register_module("perceptron_norm", perceptron_norm);
    register_module("widen", widen);
    register_module("narrow", narrow);
  }
  Tensor forward(const Tensor& x) {  // (images, patches, width)
    std::vector<Tensor> parts = query_key_value(attention_norm(x)).chunk(3, -1);
    for (Tensor& part : parts) part = part.unflatten(-1, {kHeads, -1}).transpose(1, 2);
    const Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2]);
    const Tensor attended = x + project(mixed.transpose(1, 2).flatten(2));
    return attended + narrow(at::gelu(widen(perceptron_norm(attended))));
  }
};

/// Images to the scores of their classes (arXiv:2010.11929, but with the mean of the patches).
struct VisionTransformer : nn::Module {
  nn::Conv2d patches;
  Tensor position;
  nn::ModuleList blocks;
  nn::LayerNorm norm;
  Linear head{nullptr};

  VisionTransformer(int64_t width, int64_t layers)
      : patches(nn::Conv2dOptions(1, width, kPatch).stride(kPatch)),
        position(0.02 * at::randn({(kSide / kPatch) * (kSide / kPatch), width})),
        norm(nn::LayerNormOptions({width})) {
    register_module("patches", patches);
    register_parameter("position", position);
    register_module("blocks", blocks);
    for (int64_t i = 0; i < layers; ++i) blocks->push_back(std::make_shared<Block>(width));
    register_module("norm", norm);
    head = register_module("head", Linear(width, kClasses));  // weights drawn last
  }
  Tensor forward(const Tensor& images) {  // (images, 1, kSide, kSide)
    Tensor x = patches(images).flatten(2).transpose(1, 2) + position;
    for (size_t i = 0; i < blocks->size(); ++i) x = blocks->ptr<Block>(i)->forward(x);
    return head(norm(x).mean(1));
  }
};

using Net = std::shared_ptr<VisionTransformer>;

/// The rows of a file; none if it is not as told above.
Tensor read_rows(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  constexpr int64_t kRows = kTrainImages + kTestImages, kColumns = kPixels + 1;
  if (bytes.size() != kRows * kColumns) return {};
  Tensor rows = at::empty({kRows, kColumns}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), rows.data_ptr<uint8_t>());
  return rows;
}

/// The images, of which the first kTrainImages are there to learn from.
struct Digits {
  Tensor small, classes;

  explicit Digits(const Tensor& rows)
      : small(rows.slice(1, 0, kPixels).to(at::kFloat).view({-1, 1, 8, 8}) / 16),
        classes(rows.select(1, kPixels).to(at::kLong)) {}

  /// Enlarged to (images, 1, kSide, kSide).
  Tensor images(const Tensor& chosen) const {
    return at::upsample_bilinear2d(small.index({chosen}), {kSide, kSide}, /*align_corners=*/false);
  }
};

/// All parts are equally large, so the mean over ranks is the mean over the batch.
Tensor share_of_rank(const Tensor& batch) {
  return batch.slice(0, farandole::rank(), {}, farandole::world_size());
}

/// (1 - kSoft) * cross-entropy + kSoft * T^2 * KL(teacher || student), both softened by T:
/// Hinton, Vinyals and Dean 2015, arXiv:1503.02531. T^2 makes up for gradients that shrink with
/// 1 / T^2. `classes` are those of the first images, scores are of all. Without a teacher: the
/// cross-entropy.
Tensor loss_of(const Tensor& scores, const Tensor& classes, const Tensor& teacher_scores) {
  const Tensor hard = at::cross_entropy_loss(scores.slice(0, 0, classes.size(0)), classes);
  if (!teacher_scores.defined()) return hard;
  const Tensor student = at::log_softmax(scores / kTemperature, 1);
  const Tensor teacher = at::log_softmax(teacher_scores / kTemperature, 1);
  const auto how = functional::KLDivFuncOptions().reduction(torch::kBatchMean).log_target(true);
  const Tensor soft = functional::kl_div(student, teacher, how);
  return (1 - kSoft) * hard + kSoft * kTemperature * kTemperature * soft;
}

/// Rises while the weights are raw, then falls to nothing.
double learning_rate(int step, int steps) {
  return kLearningRate * std::min((step + 1.0) / kWarmUp, double(steps - step) / steps);
}

/// Seconds of each part of a step, summed over steps; waiting for other ranks is in them.
struct StepTimes {
  using Clock = std::chrono::steady_clock;
  int steps = 0;
  double data = 0, forward = 0, backward = 0, optimizer = 0;
  Clock::time_point last = Clock::now();

  /// Seconds since the last call.
  double lap() {
    const auto before = std::exchange(last, Clock::now());
    return std::chrono::duration<double>(last - before).count();
  }
};

/// Scores from which nothing is learnt: for tests, and for a teacher, which is frozen.
Tensor predict(const Net& net, const Tensor& images) {
  const at::NoGradGuard no_grad;
  const farandole::Autocast autocast(torch::kCPU, torch::kBFloat16);
  return net->forward(images).to(at::kFloat);
}

/// Loads the last checkpoint, if there is one. All ranks draw the same numbers again from the seed,
/// so checkpoints have no generators.
int steps_done(const std::string& checkpoints, const farandole::Training& training) {
  farandole::LoadCheckpointOptions options;
  options.rng = false;
  const auto found = farandole::resume_or_start(checkpoints, training, options);
  return found ? static_cast<int>(found->at("step").toInt()) : 0;
}

void save(const std::string& checkpoints, const farandole::Training& training, int step) {
  farandole::SaveCheckpointOptions options;
  options.values = {{"step", int64_t{step}}};
  options.step = step;
  options.keep = 2;
  options.rng = false;
  farandole::save_checkpoint(checkpoints, training, options);
}

/// Teaches `net` the classes of the first `told` images, and what a `teacher` says of all. Goes on
/// from the last one of `checkpoints`, a folder of this net, unless that is empty. The times are
/// those of steps after the first one of this process.
StepTimes train(const Net& net, const Digits& digits, int steps, int64_t told,
                const std::string& checkpoints, const Net& teacher = nullptr) {
  farandole::DistributedDataParallel model(net);
  // Each rank keeps the state of its shard of the parameters, and updates that for all.
  farandole::ZeroRedundancyOptimizer optimizer(model, farandole::AdamWOptions());
  // All ranks draw the same numbers, so each knows the whole batches.
  const Tensor told_batches = at::randint(told, {steps, kBatch}, at::kLong);
  const Tensor untold_batches = at::randint(kTrainImages, {steps, teacher ? kBatch : 0}, at::kLong);
  farandole::Training training;
  training.model = net.get();
  training.optimizer = &optimizer;
  const int first = checkpoints.empty() ? 0 : steps_done(checkpoints, training);
  StepTimes times;
  const Progress progress(first, steps);
  for (int step = first; step < steps; ++step) {
    const Tensor mine = share_of_rank(told_batches[step]);
    const Tensor images = digits.images(at::cat({mine, share_of_rank(untold_batches[step])}));
    const Tensor classes = digits.classes.index({mine});
    times.data += times.lap();

    Tensor scores;
    {
      const farandole::Autocast autocast(torch::kCPU, torch::kBFloat16);
      scores = model(images).to(at::kFloat);  // the loss needs more digits than bfloat16 has
    }
    Tensor loss = loss_of(scores, classes, teacher ? predict(teacher, images) : Tensor());
    times.forward += times.lap();

    optimizer.zero_grad();
    loss.backward();  // the gradients are those of the whole batch now
    times.backward += times.lap();

    optimizer.param_groups()[0].options().set_lr(learning_rate(step, steps));
    optimizer.step();  // every rank has all new parameters now
    times.optimizer += times.lap();
    ++times.steps;
    if (step == first) times = StepTimes();  // the first step also sets things up
    if (farandole::rank() == 0 && (step + 1) % kStepsPerLine == 0) {
      std::printf("step %d of %d: %.0f images/s, %s left\n", step + 1, steps,
                  progress.per_second(step + 1, kBatch), progress.left(step + 1).c_str());
    }
    if (!checkpoints.empty() && ((step + 1) % kStepsPerCheckpoint == 0 || step + 1 == steps)) {
      save(checkpoints, training, step + 1);
    }
  }
  return times;
}

/// Each rank tests its share of the images; the counts are summed.
double test_accuracy(const Net& net, const Digits& digits) {
  const Tensor chosen = share_of_rank(at::arange(kTrainImages, kTrainImages + kTestImages));
  const Tensor guessed = predict(net, digits.images(chosen)).argmax(1);
  const Tensor correct = guessed.eq(digits.classes.index({chosen})).sum();
  farandole::all_reduce(correct);
  return correct.item<double>() / kTestImages;
}

/// A row of the table.
void print_times(const char* name, const StepTimes& times) {
  std::printf("%-18s", name);
  for (const double part : {times.data, times.forward, times.backward, times.optimizer}) {
    std::printf("%11.3f", 1e3 * part / std::max(times.steps, 1));
  }
  std::printf("\n");
}

/// Tells whether ranks have different parameters.
double parameter_sum(const Net& net) {
  double sum = 0;
  for (const Tensor& parameter : net->parameters()) {
    sum += parameter.detach().to(at::kDouble).sum().item<double>();
  }
  return sum;
}

/// Trains the teacher and both students; prints times, accuracies and a check.
void compare(const Digits& digits, uint64_t seed, int steps, const std::string& checkpoints) {
  const auto folder = [&](const char* net) {
    return checkpoints.empty() ? checkpoints : checkpoints + "/" + net;
  };
  at::manual_seed(seed);
  const auto teacher = std::make_shared<VisionTransformer>(kTeacherWidth, kTeacherLayers);
  const StepTimes teacher_times = train(teacher, digits, steps, kTrainImages, folder("teacher"));
  at::manual_seed(seed);
  const auto alone = std::make_shared<VisionTransformer>(kStudentWidth, kStudentLayers);
  const StepTimes alone_times = train(alone, digits, steps, kToldImages, folder("alone"));
  at::manual_seed(seed);  // the same weights and batches again
  const auto distilled = std::make_shared<VisionTransformer>(kStudentWidth, kStudentLayers);
  const StepTimes distilled_times =
      train(distilled, digits, steps, kToldImages, folder("distilled"), teacher);

  std::vector<double> accuracies;
  for (const Net& net : {teacher, alone, distilled}) {
    accuracies.push_back(test_accuracy(net, digits));
  }
  if (farandole::rank() == 0) {
    std::printf("ms of a step, mean        data    forward   backward  optimizer\n");
    print_times("teacher", teacher_times);
    print_times("student alone", alone_times);
    print_times("distilled student", distilled_times);  // its forward has the teacher's in it
    std::printf("accuracy on %ld test images: ", kTestImages);
    std::printf("teacher %.1f%%, student alone %.1f%%, distilled student %.1f%%\n",
                100 * accuracies[0], 100 * accuracies[1], 100 * accuracies[2]);
  }
  std::printf("rank %d of %d: the distilled student's parameters sum to %.12f\n", farandole::rank(),
              farandole::world_size(), parameter_sum(distilled));
}

int main(int argc, char** argv) {
  const Tensor rows = argc > 1 ? read_rows(argv[1]) : Tensor();
  const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0;
  const int steps = argc > 3 ? std::atoi(argv[3]) : kSteps;
  const std::string checkpoints = argc > 4 ? argv[4] : "";
  if (!rows.defined() || steps < 2) {  // times are those of the second step on
    std::fprintf(
        stderr,
        "usage: %s DIGITS_FILE [SEED [STEPS [CHECKPOINTS]]]; the source tells the file's format, "
        "STEPS are 2 or more\n",
        argv[0]);
    return 1;
  }
  farandole::init_process_group();  // finds the others through torchrun's variables
  if (kBatch % farandole::world_size() != 0) {
    std::fprintf(stderr, "%ld images cannot be shared equally by %d ranks\n", kBatch,
                 farandole::world_size());
    return 1;
  }
  at::set_num_threads(1);  // a core for each rank
  compare(Digits(rows), seed, steps, checkpoints);
}
