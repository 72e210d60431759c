// SPDX-License-Identifier: Apache-2.0
#include "farandole/amp/grad_scaler.h"

#include <ATen/ops/full.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>
#include <string>
#include <utility>

#include "amp/unscale.h"
#include "ddp/rank_reports.h"
#include "farandole/ddp/replica.h"
#include "farandole/error.h"
#include "farandole/optim/zero_redundancy_optimizer.h"

namespace farandole {
namespace {

void check(const GradScalerOptions& options) {
  const auto require = [](bool holds, const std::string& what, const std::string& rule) {
    if (!holds) {
      throw InvalidArgument("scaler-option", "a GradScaler got " + what + ".", rule,
                            "pass such a number, or leave it out for torch's default.");
    }
  };
  require(options.growth_factor > 1, "growth_factor " + std::to_string(options.growth_factor),
          "the scale is multiplied by it to grow, so it must be above 1.");
  require(options.backoff_factor < 1 && options.backoff_factor > 0,
          "backoff_factor " + std::to_string(options.backoff_factor),
          "the scale is multiplied by it to shrink, so it must be between 0 and 1.");
  require(options.growth_interval > 0, "growth_interval " + std::to_string(options.growth_interval),
          "it is the number of steps until the scale grows, so it must be at least 1.");
  require(options.init_scale > 0 && std::isfinite(options.init_scale),
          "init_scale " + std::to_string(options.init_scale),
          "the loss is multiplied by it, so it must be above 0 and finite.");
}

/// The value as a float32.
double rounded(double number) { return static_cast<double>(static_cast<float>(number)); }

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

/// Whether the last backward has dropped gradients for an Inf or NaN (see NonfinitePolicy).
bool were_dropped(const std::vector<std::shared_ptr<ReplicaLink>>& replicas) {
  return std::any_of(replicas.begin(), replicas.end(), [](const auto& link) {
    return link->replica->reducer()->has_dropped_gradients();
  });
}

bool has_gradients(const std::vector<at::Tensor>& parameters) {
  return std::any_of(parameters.begin(), parameters.end(),
                     [](const at::Tensor& each) { return each.grad().defined(); });
}

InvalidArgument no_gradients() {
  return {"scaler-without-gradients",
          "a GradScaler was asked to step an optimizer without gradients.",
          "there are no gradients to check for Inf and NaN.",
          "run backward on scale(loss) before, and zero_grad() after the step."};
}

/// What a rank found in the gradients of an optimizer that is not sharded.
enum class Finding : uint32_t { kNonfinite, kFinite, kNone, kFailed };

/// What ranks report to each other about them.
struct FindingReport {
  Finding finding;
  uint32_t scale;  ///< the bits of its float32
};

[[noreturn]] void refuse(const ReplicaGroup& group, int rank, const std::string& what,
                         const std::string& fix) {
  throw StepError("scaler-disagrees",
                  "a GradScaler in group '" + group.name() + "' on rank " +
                      std::to_string(group.rank()) + ": rank " + std::to_string(rank) + " " + what,
                  "all ranks must take a step together.", fix, {{rank}, "step"});
}

/// Throws on all ranks, except one that has failed, if they cannot go on together.
void check_findings(const RankReports<FindingReport>& reports, const ReplicaGroup& group) {
  const auto finding_of = [&](int rank) { return reports.head(rank).finding; };
  if (finding_of(group.rank()) == Finding::kFailed) return;
  const int failed =
      reports.find([](const FindingReport& each) { return each.finding == Finding::kFailed; });
  if (failed != group.world_size()) {
    refuse(group, failed, "met an exception.", "fix the cause on that rank; nothing was stepped.");
  }
  const FindingReport first = reports.head(0);
  const bool first_has_none = first.finding == Finding::kNone;
  for (int rank = 1; rank < group.world_size(); ++rank) {
    if ((finding_of(rank) == Finding::kNone) != first_has_none) {
      refuse(group, first_has_none ? 0 : rank, "has no gradients, and another rank has.",
             "zero the gradients on all ranks or on none.");
    }
    if (reports.head(rank).scale == first.scale) continue;
    refuse(group, rank, "has a different scale than rank 0.",
           "load the same state_dict() on all ranks, or call update(new_scale) on all; also after "
           "a Join, because ranks that ended early called no scaler.");
  }
}

/// What all ranks that have replicas of these parameters found; `own` if they belong to no
/// DistributedDataParallel. Ranks that have joined because they have no inputs call no scaler: then
/// each rank decides by the averages, which are the same on all.
Finding agreed(Finding own, double scale,
               const std::vector<std::shared_ptr<ReplicaLink>>& replicas) {
  Finding result = own;
  const auto number = static_cast<float>(scale);
  uint32_t bits = 0;
  std::memcpy(&bits, &number, sizeof(bits));
  for (const auto& link : replicas) {
    if (link->replica->reducer()->has_joined_ranks()) continue;
    const ReplicaGroup& group = link->replica->group();
    RankReports<FindingReport> reports(group, 0, 0);
    reports.write({own, bits});
    reports.exchange_in_order();
    check_findings(reports, group);
    const bool is_nonfinite =
        reports.any([](const FindingReport& each) { return each.finding == Finding::kNonfinite; });
    if (is_nonfinite) result = Finding::kNonfinite;
  }
  return result;
}

void check_no_float16(const std::vector<at::Tensor>& parameters) {
  for (const at::Tensor& parameter : parameters) {
    if (!parameter.grad().defined() || parameter.grad().scalar_type() != at::kHalf) continue;
    throw InvalidArgument(
        "unscale-float16", "unscale_() got float16 gradients.",
        "division by the scale would turn small float16 gradients into zeros.",
        "keep parameters in float32 and use autocast; or let step() of a ZeroRedundancyOptimizer "
        "divide them in float32, with gradients=\"shard\" where you clip.");
  }
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
  throw InvalidArgument("scaler-before-scale",
                        std::string(call) + "() of a GradScaler was called before scale().",
                        "no loss was scaled, so the gradients are not scaled either.",
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
  Check& check = check_of(optimizer.id);
  if (check.stage != Stage::kReady) {
    const bool is_unscaled = check.stage == Stage::kUnscaled;
    throw InvalidArgument("unscaled-twice",
                          is_unscaled
                              ? "unscale_() has already been called on this optimizer since "
                                "the last update()."
                              : "unscale_() is being called after step().",
                          "gradients would be divided by the scale twice.",
                          "call it once, between backward and step(), and update() after step().");
  }
  check.engine = optimizer.engine;
  const auto replicas = replicas_of(optimizer.parameters);
  check.are_dropped = were_dropped(replicas);
  const double factor = inverse_scale();
  if (optimizer.engine != nullptr) {
    const bool is_sharded = optimizer.engine->mode() == GradientMode::kShard;
    if (!is_sharded) check_no_float16(optimizer.parameters);
    const bool is_finite = is_sharded ? optimizer.engine->unscale(factor)
                                      : unscale_gradients(optimizer.parameters, factor);
    if (has_gradients(optimizer.parameters) || check.are_dropped) {
      check.is_finite = is_finite && !check.are_dropped && std::isfinite(factor);
    }
    check.stage = Stage::kUnscaled;
    return;
  }
  Finding own = Finding::kFailed;
  std::exception_ptr error;
  try {
    check_no_float16(optimizer.parameters);
    const bool is_finite = unscale_gradients(optimizer.parameters, factor);
    own = is_finite && !check.are_dropped ? Finding::kFinite : Finding::kNonfinite;
    if (!check.are_dropped && !has_gradients(optimizer.parameters)) own = Finding::kNone;
  } catch (const std::exception&) {
    error = std::current_exception();  // the other ranks wait for this one
  }
  const Finding all = agreed(own, state_.scale, replicas);
  if (error) std::rethrow_exception(error);
  check.stage = Stage::kUnscaled;
  if (all != Finding::kNone) check.is_finite = all == Finding::kFinite;
}

GradScaler::Check& GradScaler::check_of(const void* id) {
  const auto has_id = [id](const Check& check) { return check.id == id; };
  const auto found = std::find_if(checks_.begin(), checks_.end(), has_id);
  if (found != checks_.end()) return *found;
  checks_.push_back({id});
  return checks_.back();
}

bool GradScaler::begin_step(const ScaledOptimizer& optimizer) {
  if (!enabled_) return true;
  check_scaled("step");
  Check& check = check_of(optimizer.id);
  if (check.stage == Stage::kStepped) {
    throw InvalidArgument("scaler-stepped-twice",
                          "step() has already been called since the last update().",
                          "the scale is updated from one step of each optimizer.",
                          "call update() after each step().");
  }
  if (optimizer.engine == nullptr) {
    if (check.stage == Stage::kReady) unscale_(optimizer);
    if (!check.is_finite) throw no_gradients();
    return *check.is_finite;
  }
  check.engine = optimizer.engine;
  check.are_dropped = were_dropped(replicas_of(optimizer.parameters));
  if (!check.are_dropped && !has_gradients(optimizer.parameters)) {
    const InvalidArgument error = no_gradients();
    optimizer.engine->fail_step(error.what());  // the other ranks are entering the step
    throw error;
  }
  const double factor = check.stage == Stage::kUnscaled ? 1 : inverse_scale();
  // If the inverse of the scale is not finite, no unscaled gradient is.
  if (check.are_dropped || !std::isfinite(factor)) check.is_finite = false;
  optimizer.engine->expect_scaled({state_.scale, factor, check.is_finite});
  return true;
}

bool GradScaler::end_step(const void* id) {
  if (!enabled_) return true;
  Check& check = check_of(id);
  if (check.engine != nullptr) {
    check.engine->expect_plain();  // the step may not have reached the engine
    check.is_finite = !check.engine->was_left_out();
  }
  check.stage = Stage::kStepped;
  return check.is_finite.value_or(true);
}

void GradScaler::abandon_step(const void* id) {
  for (const Check& check : checks_) {
    if (check.id == id && check.engine != nullptr) check.engine->expect_plain();
  }
}

bool GradScaler::step(torch::optim::Optimizer& optimizer) {
  const ScaledOptimizer of = scaled(optimizer);
  try {
    if (begin_step(of)) optimizer.step();
  } catch (...) {
    abandon_step(of.id);
    throw;
  }
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
  bool are_finite = true;
  bool has_verdict = false;
  for (const Check& check : checks_) {
    const bool is_open = check.engine != nullptr && check.stage == Stage::kUnscaled;
    has_verdict |= check.is_finite.has_value();
    are_finite &= check.is_finite.value_or(true);
    // Not stepped, because other ranks may have found something else.
    if (is_open) are_finite = check.engine->all_agree(are_finite);
  }
  checks_.clear();
  if (!has_verdict) {
    throw InvalidArgument(
        "scaler-without-step", "update() of a GradScaler was called without a step.",
        "the scale is updated from the gradients that unscale_() or step() checked.",
        "call step(optimizer) first, once for each optimizer.");
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

// Uses the names of torch's state_dict().
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
      "scaler-archive",
      std::string("a GradScaler was loaded from an archive without '") + name + "'.",
      "a GradScaler saves its scale, factors, interval and tracker.",
      "load an archive that save() of a GradScaler has written.");
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
