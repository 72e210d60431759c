// SPDX-License-Identifier: Apache-2.0
// Trains a small transformer to continue a text, letter by letter, on one rank or several:
//
//   ./train_char_lm text.txt                                              # 1 rank
//   torchrun --nproc-per-node 2 --no-python ./train_char_lm text.txt      # 2 ranks
//   torchrun --nproc-per-node 2 --no-python ./train_char_lm text.txt 500  # of 500 steps
//   ./train_char_lm text.txt 500 checkpoints  # goes on from its last checkpoint there
//
// examples/python/train_char_lm.py is the same program, and each goes on from checkpoints of the
// other, on any number of ranks.
//
// Every step has a batch of 16 sequences, however many ranks share them out. So the loss is the
// same at any number of ranks up to 16, but for the rounding of sums in another order.
#include <ATen/CPUGeneratorImpl.h>
#include <farandole/farandole.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "progress.h"

namespace nn = torch::nn;
using at::Tensor;

constexpr int64_t kLetters = 256, kContext = 64, kWidth = 64, kHeads = 4, kLayers = 2;
constexpr int64_t kBatch = 16;  // sequences of one step, over all ranks
constexpr int64_t kStepsPerCheckpoint = 100;

/// Attention to what came before, then a perceptron.
struct Block : nn::Module {
  nn::LayerNorm attention_norm{nn::LayerNormOptions({kWidth})};
  nn::Linear query_key_value{kWidth, 3 * kWidth}, project{kWidth, kWidth};
  nn::LayerNorm perceptron_norm{nn::LayerNormOptions({kWidth})};
  nn::Linear widen{kWidth, 4 * kWidth}, narrow{4 * kWidth, kWidth};

  Block() {
    register_module("attention_norm", attention_norm);
    register_module("query_key_value", query_key_value);
    register_module("project", project);
    register_module("perceptron_norm", perceptron_norm);
    register_module("widen", widen);
    register_module("narrow", narrow);
  }
  Tensor forward(const Tensor& x) {  // (sequences, letters, width)
    std::vector<Tensor> parts = query_key_value(attention_norm(x)).chunk(3, -1);
    for (Tensor& part : parts) part = part.unflatten(-1, {kHeads, -1}).transpose(1, 2);
    const Tensor mixed = at::scaled_dot_product_attention(parts[0], parts[1], parts[2], {}, 0.0,
                                                          /*is_causal=*/true);
    const Tensor attended = x + project(mixed.transpose(1, 2).flatten(2));
    return attended + narrow(at::gelu(widen(perceptron_norm(attended))));
  }
};

/// Letters to the scores of each next letter.
struct CharLm : nn::Module {
  nn::Embedding letter{kLetters, kWidth}, position{kContext, kWidth};
  std::vector<std::shared_ptr<Block>> blocks;
  nn::LayerNorm norm{nn::LayerNormOptions({kWidth})};
  nn::Linear head{kWidth, kLetters};

  CharLm() {
    register_module("letter", letter);
    register_module("position", position);
    for (int64_t i = 0; i < kLayers; ++i) {
      blocks.push_back(register_module("block" + std::to_string(i), std::make_shared<Block>()));
    }
    register_module("norm", norm);
    register_module("head", head);
  }
  Tensor forward(const Tensor& letters) {  // (sequences, letters)
    Tensor x = letter(letters) + position(at::arange(letters.size(1)));
    for (auto& block : blocks) x = block->forward(x);
    return head(norm(x));
  }
};

/// The bytes of a file as numbers.
Tensor read_text(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  Tensor text = at::empty(static_cast<int64_t>(bytes.size()), at::kByte);
  std::copy(bytes.begin(), bytes.end(), text.data_ptr<uint8_t>());
  return text.to(at::kLong);
}

int main(int argc, char** argv) {
  const int64_t steps = argc > 2 ? std::atoi(argv[2]) : 200;
  const std::string checkpoints = argc > 3 ? argv[3] : "";
  const Tensor text = argc > 1 ? read_text(argv[1]) : Tensor();
  if (!text.defined() || text.numel() <= kContext || steps < 1) {
    std::fprintf(stderr, "usage: %s TEXT_FILE [STEPS [CHECKPOINTS]]; more than %ld letters\n",
                 argv[0], kContext);
    return 1;
  }
  farandole::init_process_group();  // finds the others through torchrun's variables
  const int rank = farandole::rank(), world_size = farandole::world_size();
  if (world_size > kBatch) {
    std::fprintf(stderr, "at most %ld ranks, one for each sequence\n", kBatch);
    return 1;
  }
  at::set_num_threads(1);  // a core for each rank
  at::manual_seed(0);

  farandole::DistributedDataParallel model(std::make_shared<CharLm>());
  // Each rank keeps the state of its shard of the parameters, and updates that for all.
  farandole::ZeroRedundancyOptimizer optimizer(model, farandole::AdamWOptions(3e-3));
  farandole::Training training;
  training.model = model.module().get();
  training.optimizer = &optimizer;
  int64_t done = 0;  // steps
  if (!checkpoints.empty()) {
    if (const auto found = farandole::resume_or_start(checkpoints, training)) {
      done = found->at("step").toInt();
    }
  }
  const Progress progress(done, steps);
  for (int64_t step = done + 1; step <= steps; ++step) {
    // All ranks draw the same numbers, so each knows the whole batch; a resumed training, too.
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(step));
    const Tensor starts = at::randint(text.numel() - kContext, {kBatch, 1}, generator, at::kLong);
    const Tensor mine = starts.slice(0, rank, kBatch, world_size);  // every world_size-th sequence
    const Tensor letters = text.take(mine + at::arange(kContext + 1));

    const Tensor scores = model(letters.slice(1, 0, kContext));
    Tensor loss = at::cross_entropy_loss(scores.flatten(0, 1), letters.slice(1, 1).flatten());
    optimizer.zero_grad();
    model.set_loss_weight(mine.size(0));  // ranks may have a sequence more or less than others
    loss.backward();                      // the gradients are those of the whole batch now
    optimizer.step();

    if (step == 1 || step % 20 == 0 || step == steps) {
      loss = loss.detach() * static_cast<double>(mine.size(0)) / kBatch;
      farandole::all_reduce(loss);  // a sum: the mean over the whole batch
      const char* last = step == steps ? ", the last" : "";
      if (rank == 0) {
        std::printf("step %ld: loss %.6f, %.0f letters/s, %s left%s\n", step, loss.item<double>(),
                    progress.per_second(step, kBatch * kContext), progress.left(step).c_str(),
                    last);
      }
    }
    if (!checkpoints.empty() && (step % kStepsPerCheckpoint == 0 || step == steps)) {
      farandole::SaveCheckpointOptions options;
      options.values = {{"step", step}};
      options.step = step;
      options.keep = 2;
      farandole::save_checkpoint(checkpoints, training, options);
    }
  }
}
