// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/update_parameters.h"

#include <c10/util/SmallVector.h>

#include <algorithm>
#include <string>

#include "ddp/move_loops.h"
#include "farandole/error.h"
#include "optim/parallel.h"
#include "optim/update_arrays.h"
#include "process_group/flat_tensor.h"

namespace farandole {
namespace {

/// With two states and the gradient 64 KiB of float32: fits into a level-2 cache, and the call of a
/// rule costs nothing beside it. Sums are added up by block, so it is part of LAMB's arithmetic.
constexpr int64_t kBlockElements = 4096;
/// What a thread is woken for.
constexpr int64_t kBlocksPerThread = 8;

/// Some elements of one parameter.
struct Block {
  size_t parameter;
  int64_t first;
  int64_t elements;
};

/// A block of half types, in float32.
class WideBlock {
 public:
  WideBlock(const UpdateArrays& arrays, int64_t first, int64_t elements, bool with_gradient)
      : type_(*data_type_of(arrays.type)), elements_(static_cast<size_t>(elements)) {
    auto* const halves = static_cast<uint16_t*>(arrays.parameter);
    home_ = halves + first;
    const MoveLoop widen = move_loop(type_, comm::DataType::kFloat32, false, false);
    widen(home_, parameter_, elements_, 1);
    if (!with_gradient) return;
    const auto* const gradient = static_cast<const uint16_t*>(arrays.gradient);
    widen(gradient + first, gradient_, elements_, 1);
  }

  float* parameter() { return parameter_; }
  const float* gradient() const { return gradient_; }
  /// Rounds the parameter back to the half type.
  void store() const {
    move_loop(comm::DataType::kFloat32, type_, false, false)(parameter_, home_, elements_, 1);
  }

 private:
  const comm::DataType type_;
  const size_t elements_;
  uint16_t* home_;
  float parameter_[kBlockElements];
  float gradient_[kBlockElements];
};

/// One step of all parameters.
class Update {
 public:
  Update(const UpdateRule& rule, std::vector<UpdateArrays> arrays,
         const std::vector<int64_t>& steps)
      : rule_(rule),
        arrays_(std::move(arrays)),
        sums_per_parameter_(static_cast<size_t>(rule.sums())) {
    sums_.resize(arrays_.size() * sums_per_parameter_);
    for (size_t i = 0; i < arrays_.size(); ++i) {
      const double* const sums = sums_per_parameter_ == 0 ? nullptr : sums_of(sums_, i);
      moments_.push_back({steps[i], steps[i] == 1, sums});
      for (int64_t first = 0; first < arrays_[i].elements; first += kBlockElements) {
        blocks_.push_back({i, first, std::min(kBlockElements, arrays_[i].elements - first)});
      }
    }
  }

  void run() {
    if (sums_per_parameter_ != 0) measure();
    for_each_block([this](size_t b) { work(blocks_[b], nullptr); });
  }

  const UpdateArrays& arrays(size_t parameter) const { return arrays_[parameter]; }

 private:
  double* sums_of(std::vector<double>& sums, size_t index) const {
    return sums.data() + index * sums_per_parameter_;
  }

  template <class Work>
  void for_each_block(const Work& work_on) const {
    const auto range = [&](int64_t begin, int64_t end) {
      for (int64_t b = begin; b < end; ++b) work_on(static_cast<size_t>(b));
    };
    run_parallel(static_cast<int64_t>(blocks_.size()), kBlocksPerThread, range);
  }

  /// Each block has sums of its own, which are added in order: threads change no bit.
  void measure() {
    std::vector<double> by_block(blocks_.size() * sums_per_parameter_);
    for_each_block([&](size_t b) { work(blocks_[b], sums_of(by_block, b)); });
    for (size_t b = 0; b < blocks_.size(); ++b) {
      double* const sums = sums_of(sums_, blocks_[b].parameter);
      for (size_t s = 0; s < sums_per_parameter_; ++s) sums[s] += sums_of(by_block, b)[s];
    }
  }

  /// Measures into `sums`, or updates if there are none.
  void work(const Block& block, double* sums) const {
    const UpdateArrays& arrays = arrays_[block.parameter];
    if (arrays.type == at::kDouble) return work_typed<double>(block, sums);
    if (arrays.type == at::kFloat) return work_typed<float>(block, sums);
    WideBlock wide(arrays, block.first, block.elements,
                   sums != nullptr || rule_.update_reads_gradient());
    run_rule(block, wide.parameter(), wide.gradient(), sums);
    if (sums == nullptr) wide.store();
  }

  template <class T>
  void work_typed(const Block& block, double* sums) const {
    const UpdateArrays& arrays = arrays_[block.parameter];
    run_rule(block, static_cast<T*>(arrays.parameter) + block.first,
             static_cast<const T*>(arrays.gradient) + block.first, sums);
  }

  template <class T>
  void run_rule(const Block& block, T* parameter, const T* gradient, double* sums) const {
    c10::SmallVector<T*, 4> states;
    for (void* state : arrays_[block.parameter].states) {
      states.push_back(static_cast<T*>(state) + block.first);
    }
    const UpdateMoment& moment = moments_[block.parameter];
    const bool reads = sums != nullptr || rule_.update_reads_gradient();
    const UpdateBlock<T> on{parameter, reads ? gradient : nullptr, states.data(), block.elements};
    if (sums != nullptr) return rule_.measure(on, moment, sums);
    rule_.update(on, moment);
  }

  const UpdateRule& rule_;
  const std::vector<UpdateArrays> arrays_;
  const size_t sums_per_parameter_;
  std::vector<double> sums_;
  std::vector<UpdateMoment> moments_;
  std::vector<Block> blocks_;
};

void check_lengths(size_t parameters, size_t gradients, size_t states, size_t steps) {
  if (gradients == parameters && states == parameters && steps == parameters) return;
  throw InvalidArgument("update_parameters got " + std::to_string(parameters) + " parameters, " +
                            std::to_string(gradients) + " gradients, " + std::to_string(states) +
                            " lists of states and " + std::to_string(steps) + " steps.",
                        "each parameter has one of each.", "pass lists of equal lengths.");
}

void check_step(int64_t step) {
  if (step >= 1) return;
  throw InvalidArgument("update_parameters got step " + std::to_string(step) + ".",
                        "steps are counted from 1.",
                        "pass the number of the step that is being taken.");
}

}  // namespace

void update_parameters(const UpdateRule& rule, const std::vector<at::Tensor>& parameters,
                       const std::vector<at::Tensor>& gradients,
                       const std::vector<std::vector<at::Tensor>>& states,
                       const std::vector<int64_t>& steps) {
  check_lengths(parameters.size(), gradients.size(), states.size(), steps.size());
  const std::vector<std::string> names = rule.state_names();
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_step(steps[i]);
    check_update(parameters[i], gradients[i], states[i], names);
  }
  std::vector<UpdateArrays> arrays;
  for (size_t i = 0; i < parameters.size(); ++i) {
    arrays.push_back(arrays_of(parameters[i], gradients[i], states[i]));
  }
  Update update(rule, std::move(arrays), steps);
  update.run();
  for (size_t i = 0; i < parameters.size(); ++i) {
    store_arrays(update.arrays(i), parameters[i], states[i]);
  }
}

}  // namespace farandole
