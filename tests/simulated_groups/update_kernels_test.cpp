// SPDX-License-Identifier: Apache-2.0
// The kernels for accelerators against the loops over host memory, bit by bit.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "farandole/optim/adam.h"
#include "farandole/optim/lamb.h"
#include "farandole/optim/lars.h"
#include "farandole/optim/sgd.h"
#include "optim/device/kernel_launch.h"
#include "optim/device/kernel_launches.h"
#include "optim/rule_run.h"
#include "optim/step/most_sums.h"
#include "optim/step/step_pass.h"
#include "process_group/data_type.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::sim {
namespace {

using test::values;
using Tensors = std::vector<at::Tensor>;

/// How parameters are stored and rounded.
struct Storage {
  const char* name;
  at::ScalarType dtype;
  bool has_masters;
  bool rounds_stochastically;
};
const Storage kStorages[] = {{"float64", at::kDouble, false, false},
                             {"float32", at::kFloat, false, false},
                             {"bfloat16 with masters", at::kBFloat16, true, false},
                             {"float16 with masters", at::kHalf, true, false},
                             {"bfloat16", at::kBFloat16, false, false},
                             {"float16", at::kHalf, false, false},
                             {"bfloat16, stochastic", at::kBFloat16, false, true}};

/// What becomes of the sum of gradients.
struct Averaging {
  double divisor;
  std::vector<GradientChange> changes;
};
const Averaging kAveragings[] = {
    {1, {}},
    {3, {{GradientChange::Kind::kScale, 0.7}, {GradientChange::Kind::kClamp, 0.21}}},
    {1, {{GradientChange::Kind::kNorm, 1}, {GradientChange::Kind::kScale, 1.0 / 1024}}}};
constexpr double kNormFactor = 0.3;

/// More than one launch has room for, and some longer than a block.
std::vector<int64_t> lengths() {
  std::vector<int64_t> all{1, 4096, 4097, 9001, 255, 257};
  while (all.size() < kKernelPieces + 5) all.push_back(static_cast<int64_t>(all.size()) * 3);
  return all;
}

at::ScalarType state_dtype(const Storage& storage) {
  return storage.dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// Parameters with all that a step needs, on a device or on the CPU.
struct Pieces {
  Tensors parameters;
  Tensors masters;
  Tensors gradients;
  std::vector<Tensors> states;  ///< by piece
  at::Tensor sums;              ///< kMostSums a piece
};

class UpdateKernels : public NoRaces {
 protected:
  static Pieces pieces_on(c10::Device device, const UpdateRule& rule, const Storage& storage) {
    Pieces made;
    for (const int64_t length : lengths()) {
      const at::Tensor wide = values(length, length, state_dtype(storage));
      made.parameters.push_back(wide.to(storage.dtype).to(device, storage.dtype, false, true));
      made.masters.push_back(storage.has_masters ? wide.to(device) : at::Tensor());
      made.states.emplace_back();
      for (size_t i = 0; i < rule.state_names().size(); ++i) {
        made.states.back().push_back(at::zeros_like(wide).to(device));
      }
    }
    const auto count = static_cast<int64_t>(made.parameters.size() * kMostSums);
    made.sums = at::zeros({count}, at::kDouble).to(device);
    return made;
  }

  static void set_gradients(Pieces& pieces, int64_t step) {
    pieces.gradients.clear();
    for (const at::Tensor& each : pieces.parameters) {
      const at::Tensor wide = values(each.numel(), step, at::kDouble);
      pieces.gradients.push_back(wide.to(each.scalar_type()).to(each.device()));
    }
  }

  static RoundingKey key_of(size_t piece, int64_t step) { return rounding_key(11, step, piece); }
  static uint64_t first_element(size_t piece) {  // some on both sides of 2^32
    return piece % 3 == 0 ? (uint64_t{1} << 32) - 5 : piece * 7;
  }

  static std::vector<StepPiece> on_host(Pieces& pieces, const UpdateRule& rule,
                                        const StepContext& context, const Storage& storage,
                                        const Averaging& averaging,
                                        std::vector<std::vector<void*>>& addresses) {
    std::vector<StepPiece> made;
    addresses.resize(pieces.parameters.size() * 2);
    for (size_t i = 0; i < pieces.parameters.size(); ++i) {
      std::vector<void*>& states = addresses[2 * i];
      std::vector<void*>& source = addresses[2 * i + 1];
      states.clear();
      for (const at::Tensor& each : pieces.states[i]) states.push_back(each.mutable_data_ptr());
      source = {pieces.gradients[i].mutable_data_ptr()};
      StepPiece piece{};
      piece.dtype = *data_type_of(storage.dtype);
      piece.elements = pieces.parameters[i].numel();
      piece.gradient = {piece.dtype, const_cast<const void* const*>(source.data()), 1,
                        averaging.divisor, &averaging.changes};
      piece.parameter = static_cast<std::byte*>(pieces.parameters[i].mutable_data_ptr());
      if (storage.has_masters) piece.master = pieces.masters[i].mutable_data_ptr<float>();
      if (storage.rounds_stochastically) {
        piece.rounding = StochasticRounding{key_of(i, context.step), first_element(i)};
      }
      piece.states = reinterpret_cast<std::byte* const*>(states.data());
      piece.state_count = states.size();
      piece.rule = &rule;
      piece.context = context;
      double* const sums = pieces.sums.mutable_data_ptr<double>() + i * kMostSums;
      piece.context.sums = rule.sums() > 0 ? sums : nullptr;
      piece.sums = rule.sums() > 0 ? sums : nullptr;
      made.push_back(piece);
    }
    return made;
  }

  static void launch(Pieces& pieces, const UpdateRule& rule, const StepContext& context,
                     const Storage& storage, const Averaging& averaging, const at::Tensor& factor,
                     KernelLaunches::Kind kind) {
    const auto formulas = rule.on_device()->formulas(context);
    KernelTable table{};
    table.parameter_dtype = *data_type_of(storage.dtype);
    table.gradient_dtype = table.parameter_dtype;
    table.rounds_stochastically = storage.rounds_stochastically;
    table.states = static_cast<uint8_t>(rule.state_names().size());
    table.divisor = averaging.divisor;
    for (const GradientChange& change : averaging.changes) {
      const bool has_factor = change.kind == GradientChange::Kind::kNorm;
      table.change[table.changes++] = {change.kind == GradientChange::Kind::kClamp, change.value,
                                       has_factor ? factor.const_data_ptr<double>() : nullptr};
    }
    KernelLaunches launches(pieces.sums.device(), kind, *formulas, table);
    for (size_t i = 0; i < pieces.parameters.size(); ++i) {
      KernelPiece piece{};
      piece.parameter = pieces.parameters[i].mutable_data_ptr();
      piece.gradient = pieces.gradients[i].const_data_ptr();
      if (storage.has_masters) piece.master = pieces.masters[i].mutable_data_ptr<float>();
      for (size_t s = 0; s < pieces.states[i].size(); ++s) {
        piece.states[s] = pieces.states[i][s].mutable_data_ptr();
      }
      if (rule.sums() > 0) piece.sums = pieces.sums.mutable_data_ptr<double>() + i * kMostSums;
      piece.elements = pieces.parameters[i].numel();
      piece.first_element = first_element(i);
      piece.key = key_of(i, context.step);
      launches.add(piece);
    }
    launches.end();
  }

  static bool same_bits(const at::Tensor& own, const at::Tensor& expected) {
    const at::Tensor on_cpu = own.cpu();
    return std::memcmp(on_cpu.const_data_ptr(), expected.const_data_ptr(), expected.nbytes()) == 0;
  }

  static void expect_same_bits(const Pieces& own, const Pieces& expected, const std::string& of) {
    for (size_t i = 0; i < own.parameters.size(); ++i) {
      ASSERT_TRUE(same_bits(own.parameters[i], expected.parameters[i])) << of << ", piece " << i;
      if (own.masters[i].defined()) {
        ASSERT_TRUE(same_bits(own.masters[i], expected.masters[i])) << of << ", master " << i;
      }
      for (size_t s = 0; s < own.states[i].size(); ++s) {
        ASSERT_TRUE(same_bits(own.states[i][s], expected.states[i][s])) << of << ", state " << s;
      }
    }
  }

  /// As a program does that loads parameters.
  static void set_from_outside(Pieces& pieces) {
    for (size_t i = 0; i < pieces.parameters.size(); i += 5) pieces.parameters[i].fill_(0.37);
    pieces.parameters[1].zero_();  // a norm of 0
  }

  void compare(const UpdateRule& rule, const Storage& storage, const Averaging& averaging) {
    const std::string of = rule.description() + ", " + storage.name;
    Pieces own = pieces_on(device_, rule, storage);
    Pieces expected = pieces_on(c10::kCPU, rule, storage);
    Averaging on_host_averaging = averaging;
    for (GradientChange& change : on_host_averaging.changes) {
      if (change.kind == GradientChange::Kind::kNorm) {
        change = {GradientChange::Kind::kScale, kNormFactor};
      }
    }
    const at::Tensor factor = at::full({}, kNormFactor, at::kDouble).to(device_);
    std::vector<std::vector<void*>> addresses;
    for (int64_t step = 1; step <= 3; ++step) {
      for (Pieces* pieces : {&own, &expected}) {
        set_gradients(*pieces, step);
        if (step == 2) set_from_outside(*pieces);
      }
      const StepContext context{step, step == 1, nullptr};
      StepPass pass;
      expected.sums.zero_();
      const auto host = on_host(expected, rule, context, storage, on_host_averaging, addresses);
      if (rule.sums() > 0) {
        pass.measure(host);
        launch(own, rule, context, storage, averaging, factor, KernelLaunches::Kind::kMeasure);
        EXPECT_TRUE(at::allclose(own.sums.cpu(), expected.sums, 1e-12, 0)) << of;
        own.sums.copy_(expected.sums);
      }
      pass.update(host);
      launch(own, rule, context, storage, averaging, factor, KernelLaunches::Kind::kUpdate);
      expect_same_bits(own, expected, of + ", step " + std::to_string(step));
    }
  }

  /// Each storage with one averaging, another one for each rule.
  void compare_all(const UpdateRule& rule) {
    for (const Storage& storage : kStorages) {
      compare(rule, storage, kAveragings[next_++ % std::size(kAveragings)]);
    }
  }

  const c10::Device device_{kSim, 0};
  size_t next_ = 0;
};
INSTANTIATE_TEST_SUITE_P(, UpdateKernels, ::testing::Values(Schedule::kLazy),
                         ::testing::PrintToStringParamName());

TEST_P(UpdateKernels, AreThere) {
  EXPECT_EQ(obstacle_to_kernels(device_), "");
  EXPECT_NE(obstacle_to_kernels(c10::Device(c10::kMeta)), "");
}

TEST_P(UpdateKernels, OfAdamHaveTheBitsOfTheCpu) {
  AdamHyperparameters adam;
  adam.lr = 0.01;
  adam.weight_decay = 0.1;
  compare_all(AdamRule(adam));
  adam.decoupled_weight_decay = true;
  adam.amsgrad = true;
  adam.maximize = true;
  compare_all(AdamRule(adam));
}

TEST_P(UpdateKernels, OfSgdHaveTheBitsOfTheCpu) {
  SgdHyperparameters sgd;
  sgd.lr = 0.1;
  compare_all(SgdRule(sgd));
  sgd.momentum = 0.9;
  sgd.dampening = 0.2;
  sgd.weight_decay = 0.1;
  compare_all(SgdRule(sgd));
  sgd.dampening = 0;
  sgd.nesterov = true;
  sgd.maximize = true;
  compare_all(SgdRule(sgd));
}

TEST_P(UpdateKernels, OfLarsHaveTheBitsOfTheCpu) {
  LarsHyperparameters lars;
  compare_all(LarsRule(lars));
  lars.momentum = 0.9;
  lars.weight_decay = 0.1;
  lars.nesterov = true;
  compare_all(LarsRule(lars));
}

TEST_P(UpdateKernels, OfLambHaveTheBitsOfTheCpu) {
  LambHyperparameters lamb;
  lamb.weight_decay = 0.1;
  compare_all(LambRule(lamb));
  lamb.bias_correction = false;
  lamb.maximize = true;
  compare_all(LambRule(lamb));
}

}  // namespace
}  // namespace farandole::sim
