// SPDX-License-Identifier: Apache-2.0
#include "farandole/amp/grad_scaler.h"

#include <ATen/ops/full.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "amp/unscale.h"
#include "farandole/ddp/replica.h"
#include "farandole/error.h"
#include "farandole/optim/zero_redundancy_optimizer.h"

namespace farandole {
namespace {

void check(const GradScalerOptions& options) {
  const auto require = [](bool holds, const std::string& what, const std::string& rule) {
    if (!holds) {
      throw InvalidArgument("a GradScaler got " + what + ".", rule,
                            "pass such a number, or leave it out for torch's default.");
    }
  };
  require(options.growth_factor > 1, "growth_factor " + std::to_string(options.growth_factor),
          "the scale is multiplied by it to grow, so it is above 1.");
  require(options.backoff_factor < 1 && options.backoff_factor > 0,
          "backoff_factor " + std::to_string(options.backoff_factor),
          "the scale is multiplied by it to shrink, so it is between 0 and 1.");
  require(options.growth_interval > 0, "growth_interval " + std::to_string(options.growth_interval),
          "it counts steps until the scale grows, so it is at least 1.");
  require(options.init_scale > 0 && std::isfinite(options.init_scale),
          "init_scale " + std::to_string(options.init_scale),
          "the loss is multiplied by it, so it is above 0 and finite.");
}

/// As a tensor of one float32 would hold it.
double rounded(double number) { return static_cast<double>(static_cast<float>(number)); }

bool has_gradient(const std::vector<at::Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& each) { return each.grad().defined(); });
}

/// The replicas that these parameters belong to, in the same order on every rank.
std::vector<std::shared_ptr<ReplicaLink>> replicas_of(const std::vector<at::Tensor>& parameters) {
  std::vector<std::shared_ptr<ReplicaLink>> replicas;
  for (const at::Tensor& parameter : parameters) {
    auto replica = Replica::of(parameter);
    if (!replica || replica->replica == nullptr) continue;
    const bool is_new = std::count(replicas.begin(), replicas.end(), replica) == 0;
    if (is_new) replicas.push_back(std::move(replica));
  }
  return replicas;
}

/// False if they were dropped for an Inf or NaN (see NonfinitePolicy). Throws if there are none for
/// another reason.
bool has_gradients(const ScaledOptimizer& optimizer) {
  if (has_gradient(optimizer.parameters)) return true;
  for (const auto& link : replicas_of(optimizer.parameters)) {
    if (link->replica->reducer()->has_dropped_gradients()) return false;
  }
  throw InvalidArgument("a GradScaler was to step an optimizer without gradients.",
                        "there is nothing in which it could look for Inf and NaN.",
                        "run backward on scale(loss) before, and zero_grad() after the step.");
}

/// Whether a rank that has a replica of these parameters says so too; `is_finite` where they belong
/// to no DistributedDataParallel. Ranks that have joined for want of inputs call no scaler: then
/// the averages, which are alike, speak for all.
bool agreed(bool is_finite, const std::vector<at::Tensor>& parameters) {
  for (const auto& link : replicas_of(parameters)) {
    if (link->replica->reducer()->has_joined_ranks()) continue;
    for (const uint64_t each : link->replica->group().all_gather(uint64_t{is_finite})) {
      is_finite &= each != 0;
    }
  }
  return is_finite;
}

ScaledOptimizer scaled(torch::optim::Optimizer& optimizer) {
  ScaledOptimizer result{&optimizer, {}, nullptr};
  for (const auto& group : optimizer.param_groups()) {
    const auto& parameters = group.params();
    result.parameters.insert(result.parameters.end(), parameters.begin(), parameters.end());
  }
  if (auto* const zero = dynamic_cast<ZeroRedundancyOptimizer*>(&optimizer)) {
    result.engine = &zero->engine();
  }
  return result;
}

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options)
    : enabled_(options.enabled),
      state_{rounded(options.init_scale), options.growth_factor, options.backoff_factor,
             options.growth_interval, 0} {
  if (enabled_) check(options);
}

void GradScaler::check_scaled(const char* call) const {
  if (has_scaled_) return;
  throw InvalidArgument(std::string(call) + "() of a GradScaler was called before scale().",
                        "no loss was scaled, so gradients are not either.",
                        "call scale(loss).backward() instead of loss.backward().");
}

double GradScaler::inverse_scale() const { return rounded(1 / state_.scale); }

double GradScaler::get_scale() const { return enabled_ ? state_.scale : 1; }

at::Tensor GradScaler::scale(const at::Tensor& output) {
  if (!enabled_) return output;
  has_scaled_ = true;
  return output * at::full({}, state_.scale, output.options().dtype(at::kFloat));
}

std::vector<at::Tensor> GradScaler::scale(const std::vector<at::Tensor>& outputs) {
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& output : outputs) scaled.push_back(scale(output));
  return scaled;
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) { unscale_(scaled(optimizer)); }

void GradScaler::unscale_(const ScaledOptimizer& optimizer) {
  if (!enabled_) return;
  check_scaled("unscale_");
  Check& check = checks_[optimizer.id];
  if (check.stage != Stage::kReady) {
    const bool is_unscaled = check.stage == Stage::kUnscaled;
    throw InvalidArgument(is_unscaled
                              ? "unscale_() has already been called on this optimizer since "
                                "the last update()."
                              : "unscale_() is being called after step().",
                          "gradients would be divided by the scale twice.",
                          "call it once, between backward and step(), and update() after step().");
  }
  check.engine = optimizer.engine;
  if (optimizer.engine != nullptr && optimizer.engine->mode() == GradientMode::kShard) {
    optimizer.engine->unscale(inverse_scale());
    check.stage = Stage::kUnscaled;
    return;
  }
  for (const at::Tensor& parameter : optimizer.parameters) {
    if (!parameter.grad().defined() || parameter.grad().scalar_type() != at::kHalf) continue;
    throw InvalidArgument(
        "unscale_() got float16 gradients.",
        "divided by the scale, the small ones of them are zero.",
        "keep parameters in float32 and use autocast; or let step() of a ZeroRedundancyOptimizer "
        "divide them in float32, with gradients=\"shard\" where you clip.");
  }
  const bool is_finite =
      has_gradients(optimizer) && unscale_gradients(optimizer.parameters, inverse_scale());
  check.stage = Stage::kUnscaled;
  check.is_finite =
      optimizer.engine != nullptr ? is_finite : agreed(is_finite, optimizer.parameters);
}

bool GradScaler::begin_step(const ScaledOptimizer& optimizer) {
  if (!enabled_) return true;
  check_scaled("step");
  Check& check = checks_[optimizer.id];
  if (check.stage == Stage::kStepped) {
    throw InvalidArgument("step() has already been called since the last update().",
                          "the scale is judged by one step of each optimizer.",
                          "call update() after each step().");
  }
  if (optimizer.engine == nullptr) {
    if (check.stage == Stage::kReady) unscale_(optimizer);
    return *check.is_finite;
  }
  check.engine = optimizer.engine;
  try {
    check.has_gradients = has_gradients(optimizer);
  } catch (const InvalidArgument& error) {
    optimizer.engine->fail_step(error.what());  // the others are on their way into it
    throw;
  }
  const bool is_unscaled = check.stage == Stage::kUnscaled;
  optimizer.engine->expect_scaled({is_unscaled ? 1 : inverse_scale(), check.is_finite});
  return true;
}

bool GradScaler::end_step(const void* id) {
  if (!enabled_) return true;
  Check& check = checks_.at(id);
  if (check.engine != nullptr) {
    check.is_finite = check.has_gradients && !check.engine->was_left_out();
  }
  check.stage = Stage::kStepped;
  return *check.is_finite;
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  const ScaledOptimizer of = scaled(optimizer);
  if (begin_step(of)) optimizer.step();
  return end_step(of.id);
}

void GradScaler::update(std::optional<double> new_scale) {
  if (!enabled_) return;
  check_scaled("update");
  if (new_scale) {
    state_.scale = rounded(*new_scale);
    checks_.clear();
    return;
  }
  if (checks_.empty()) {
    throw InvalidArgument("update() of a GradScaler was called without a step.",
                          "the scale is judged by the gradients of unscale_() or step().",
                          "call step(optimizer) before, once for each optimizer.");
  }
  bool are_finite = true;
  for (auto& [id, check] : std::exchange(checks_, {})) {
    const bool is_open = check.engine != nullptr && check.stage == Stage::kUnscaled;
    are_finite &= is_open ? check.engine->are_gradients_finite() : check.is_finite.value_or(true);
  }
  const double before = state_.scale;
  if (!are_finite) {
    state_.scale = rounded(before * state_.backoff_factor);
    state_.growth_tracker = 0;
  } else if (++state_.growth_tracker >= state_.growth_interval) {
    const double grown = rounded(before * state_.growth_factor);
    if (std::isfinite(grown)) state_.scale = grown;
    state_.growth_tracker = 0;
  }
}

namespace {

// In the names that torch's state_dict() has.
void write_number(torch::serialize::OutputArchive& archive, const char* name, double number) {
  archive.write(name, c10::IValue(number));
}
void write_number(torch::serialize::OutputArchive& archive, const char* name, int64_t number) {
  archive.write(name, c10::IValue(number));
}

c10::IValue read_number(torch::serialize::InputArchive& archive, const char* name) {
  c10::IValue value;
  if (archive.try_read(name, value)) return value;
  throw InvalidArgument(
      std::string("a GradScaler was to be loaded from an archive without '") + name + "'.",
      "a scaler saves scale, factors, interval and tracker.",
      "load what save() of a GradScaler has written.");
}

}  // namespace

void GradScaler::save(torch::serialize::OutputArchive& archive) const {
  write_number(archive, "scale", state_.scale);
  write_number(archive, "growth_factor", state_.growth_factor);
  write_number(archive, "backoff_factor", state_.backoff_factor);
  write_number(archive, "growth_interval", state_.growth_interval);
  write_number(archive, "_growth_tracker", state_.growth_tracker);
}

void GradScaler::load(torch::serialize::InputArchive& archive) {
  state_ = {read_number(archive, "scale").toDouble(),
            read_number(archive, "growth_factor").toDouble(),
            read_number(archive, "backoff_factor").toDouble(),
            read_number(archive, "growth_interval").toInt(),
            read_number(archive, "_growth_tracker").toInt()};
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const GradScaler& scaler) {
  scaler.save(archive);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           GradScaler& scaler) {
  scaler.load(archive);
  return archive;
}

}  // namespace farandole
