// SPDX-License-Identifier: Apache-2.0
// Gradients reduced on a stream of their own during backward, as a reducer does it. Each order that
// this needs is left out once, which must be reported under every schedule.
#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randn.h>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <ostream>
#include <string>
#include <tuple>

#include "support/simulated_device/device.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/schedule.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::sim {
namespace {

using at::Tensor;
using ::testing::ContainsRegex;
using ::testing::IsEmpty;

enum class Edge { kGradientIsThere, kGradientIsReduced, kFactorIsFilled, kFactorIsRecorded };

struct LeftOut {
  const char* name;
  Edge edge;
  const char* report;  ///< a regular expression
};

void PrintTo(const LeftOut& left_out, std::ostream* out) { *out << left_out.name; }

const LeftOut kEdges[] = {
    {"GradientIsThere", Edge::kGradientIsThere,
     "'mul.* on sim:0 stream .* reads what '.* on sim:0 default stream"},
    {"GradientIsReduced", Edge::kGradientIsReduced,
     "'mul.* on sim:0 default stream.* reads what 'mul.* on sim:0 stream"},
    {"FactorIsFilled", Edge::kFactorIsFilled,
     "'mul.* on sim:0 stream .* reads what 'fill_.* on sim:0 default stream"},
    {"FactorIsRecorded", Edge::kFactorIsRecorded,
     "memory is released while 'mul.* on sim:0 stream"},
};

/// A backward whose gradient is doubled on a side stream.
class Backward {
 public:
  explicit Backward(std::optional<Edge> left_out) : left_out_(left_out) {}

  /// Whether the update saw the doubled gradient.
  bool is_right() {
    const Tensor weight = at::randn({32, 32}, at::TensorOptions(at::kCPU));
    Tensor simulated = weight.to(c10::Device(kSim, 0)).requires_grad_();
    simulated.register_hook([&](const Tensor& gradient) { reduce(gradient); });
    simulated.tanh().mm(simulated).sum().backward();
    if (has(Edge::kGradientIsReduced)) reduced_.block(main_);
    const Tensor updated = (reduction_ * 0.5).cpu();

    Tensor expected = weight.clone().requires_grad_();
    expected.tanh().mm(expected).sum().backward();
    return at::allclose(updated, expected.grad());
  }

 private:
  bool has(Edge edge) const { return left_out_ != edge; }

  void reduce(const Tensor& gradient) {
    const c10::Stream current = guard_.getStream(gradient.device());
    c10::Event there(kSim);
    if (!has(Edge::kFactorIsFilled)) there.record(current);  // too early
    const Tensor factor = at::full_like(gradient, 2);
    if (has(Edge::kFactorIsFilled)) there.record(current);
    if (has(Edge::kGradientIsThere)) there.block(side_);
    const c10::StreamGuard on_side(side_);
    reduction_ = gradient * factor;
    gradient.record_stream(side_);
    if (has(Edge::kFactorIsRecorded)) factor.record_stream(side_);
    reduced_.record(side_);
  }

  const std::optional<Edge> left_out_;
  const c10::impl::VirtualGuardImpl guard_{kSim};
  const c10::Stream main_ = guard_.getDefaultStream(c10::Device(kSim, 0));
  const c10::Stream side_ = guard_.getStreamFromGlobalPool(c10::Device(kSim, 0));
  c10::Event reduced_{kSim};
  Tensor reduction_;
};

std::string reports() {
  std::string all;
  for (const std::string& each : race_detector().take_reports()) all += each + "\n";
  return all;
}

class SideStream : public ::testing::TestWithParam<std::tuple<LeftOut, Schedule>> {};
INSTANTIATE_TEST_SUITE_P(, SideStream,
                         ::testing::Combine(::testing::ValuesIn(kEdges), kEverySchedule),
                         [](const auto& each) {
                           return std::get<LeftOut>(each.param).name + std::string("_") +
                                  ::testing::PrintToString(std::get<Schedule>(each.param));
                         });

TEST_P(SideStream, NeedsEachOrder) {
  const LeftOut& left_out = std::get<LeftOut>(GetParam());
  set_schedule(std::get<Schedule>(GetParam()));
  race_detector().set_response(RaceDetector::Response::kReport);
  EXPECT_TRUE(Backward(std::nullopt).is_right());
  synchronize_device(0);
  EXPECT_THAT(reports(), IsEmpty());
  Backward(left_out.edge).is_right();
  synchronize_device(0);
  EXPECT_THAT(reports(), ContainsRegex(left_out.report));
  race_detector().set_response(RaceDetector::Response::kThrow);
}

}  // namespace
}  // namespace farandole::sim
