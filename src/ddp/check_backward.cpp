// SPDX-License-Identifier: Apache-2.0
#include "ddp/check_backward.h"

#include <algorithm>
#include <functional>

#include "ddp/rank_text.h"
#include "farandole/error.h"

namespace farandole {
namespace {

using Ranks = std::vector<int>;

constexpr const char* kBackward = "backward";  // Fault::collective

Ranks ranks_where(const std::vector<BackwardReport>& reports,
                  const std::function<bool(const BackwardReport&)>& holds) {
  Ranks ranks;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    if (holds(reports[rank])) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

int world_size_of(const std::vector<BackwardReport>& reports) {
  return static_cast<int>(reports.size());
}

std::string subject(const BackwardContext& context, size_t world_size) {
  return "backward #" + std::to_string(context.backward) + " in group '" + context.group +
         "' on rank " + std::to_string(context.rank) + " of " + std::to_string(world_size);
}

/// The parameters for which a report fulfils the condition, with the ranks: "'head.bias' on rank 1,
/// 'mask' on every rank". Empty if there are none.
std::string parameters_that(const std::vector<BackwardReport>& reports,
                            const BackwardContext& context,
                            const std::function<bool(const BackwardReport&, size_t)>& holds) {
  constexpr size_t kMostNames = 10;
  std::string text;
  size_t found = 0;
  for (size_t index = 0; index < context.parameters.size(); ++index) {
    const Ranks ranks =
        ranks_where(reports, [&](const BackwardReport& report) { return holds(report, index); });
    if (ranks.empty() || ++found > kMostNames) continue;
    text += (text.empty() ? "'" : ", '") + context.parameters[index] + "' on " +
            text_of_ranks(ranks, world_size_of(reports));
  }
  if (found > kMostNames) text += " and " + std::to_string(found - kMostNames) + " more";
  return text;
}

void check_abandoned(const std::vector<BackwardReport>& reports, const BackwardContext& context) {
  const Ranks abandoned = ranks_where(
      reports, [](const BackwardReport& report) { return report.has(BackwardReport::kAbandoned); });
  if (abandoned.empty() ||
      reports[static_cast<size_t>(context.rank)].has(BackwardReport::kAbandoned)) {
    return;
  }
  throw BackwardError("backward-abandoned",
                      subject(context, reports.size()) + " was abandoned by " +
                          text_of_ranks(abandoned, world_size_of(reports)) + ".",
                      "an exception left backward on that rank, and the program continued.",
                      "fix the cause of the exception; or zero the gradients on every rank and "
                      "continue with the next batch.",
                      {abandoned, kBackward});
}

/// A rank that caught an exception of its forward and continued with its next batch is one forward
/// ahead of the others.
void check_forwards(const std::vector<BackwardReport>& reports, const BackwardContext& context) {
  const auto joined = [](const BackwardReport& report) {
    return report.has(BackwardReport::kJoined);
  };
  const Ranks failed = ranks_where(reports, [](const BackwardReport& report) {
    return report.has(BackwardReport::kForwardFailed);
  });
  const uint64_t own = reports[static_cast<size_t>(context.rank)].forward;
  const bool equal = std::all_of(reports.begin(), reports.end(), [&](const BackwardReport& report) {
    return joined(report) || report.forward == own;
  });
  if (failed.empty() || equal || joined(reports[static_cast<size_t>(context.rank)])) return;
  throw BackwardError("batch-skipped",
                      subject(context, reports.size()) + " met the backward of another batch: " +
                          text_of_ranks(failed, world_size_of(reports)) + " skipped one.",
                      "an exception left forward on that rank, and the program continued with the "
                      "next batch, but the other ranks did not.",
                      "fix the cause of the exception; or zero the gradients on every rank and "
                      "continue. The next batches are averaged again, but that rank reaches the "
                      "end of its data one batch before the others: repeat the batch that failed, "
                      "or train within join().",
                      {failed, kBackward});
}

/// The ranks whose reports fulfil the condition for a parameter.
Ranks ranks_with(const std::vector<BackwardReport>& reports,
                 const std::function<bool(const BackwardReport&, size_t)>& holds) {
  return ranks_where(reports, [&](const BackwardReport& report) {
    for (size_t index = 0; index < report.gradients.size(); ++index) {
      if (holds(report, index)) return true;
    }
    return false;
  });
}

void check_late(const std::vector<BackwardReport>& reports, const BackwardContext& context) {
  const auto is_late = [](const BackwardReport& report, size_t index) {
    return report.gradients[index] == BackwardReport::kLate;
  };
  const std::string late = parameters_that(reports, context, is_late);
  if (late.empty()) return;
  throw BackwardError(
      "late-gradient",
      subject(context, reports.size()) +
          ": parameters got a gradient after their bucket had been "
          "launched: " +
          late + ".",
      "they got fewer gradients in each earlier backward: the number of uses of a parameter in "
      "checkpointed blocks has changed.",
      "zero the gradients and repeat the step: the new number is known now. If it changes from "
      "step to step, use torch.utils.checkpoint with use_reentrant=False, without static_graph.",
      {ranks_with(reports, is_late), kBackward});
}

void check_missing(const std::vector<BackwardReport>& reports, const BackwardContext& context) {
  const auto is_missing = [](const BackwardReport& report, size_t index) {
    if (report.has(BackwardReport::kJoined) || report.has(BackwardReport::kCountsUnused))
      return false;
    const uint8_t gradient = report.gradients[index];
    return gradient == BackwardReport::kNone || gradient == BackwardReport::kEarlier;
  };
  const std::string missing = parameters_that(reports, context, is_missing);
  if (missing.empty()) return;
  throw BackwardError(
      "no-gradient",
      subject(context, reports.size()) + ": parameters got no gradient: " + missing + ".",
      "the loss of those ranks does not depend on them, so they cannot be averaged over all ranks.",
      "use them in the loss on every rank, freeze them with requires_grad_(False), or pass "
      "find_unused_parameters=True, which counts missing gradients as zero.",
      {ranks_with(reports, is_missing), kBackward});
}

void check_hooks(const std::vector<BackwardReport>& reports, const BackwardContext& context) {
  std::string failed;
  for (size_t rank = 0; rank < reports.size(); ++rank) {
    const auto& bucket = reports[rank].failed_bucket;
    if (!bucket) continue;
    failed += (failed.empty() ? "" : ", ") + ("for bucket " + std::to_string(*bucket)) +
              " on rank " + std::to_string(rank);
  }
  if (failed.empty()) return;
  throw BackwardError(
      "hook-failed",
      subject(context, reports.size()) + ": the communication hook failed " + failed + ".",
      "the hook raised an exception on that rank, or its future held an exception or was never "
      "completed.",
      "see the error of that rank and fix its cause; or zero the gradients on every rank and go on "
      "with the next batch.",
      {ranks_where(reports,
                   [](const BackwardReport& report) { return report.failed_bucket.has_value(); }),
       kBackward});
}

void check_weights(const std::vector<BackwardReport>& reports, const BackwardContext& context) {
  const Ranks weighted = ranks_where(reports, [](const BackwardReport& report) {
    return report.has(BackwardReport::kWeighted) && !report.has(BackwardReport::kJoined);
  });
  const Ranks joined = ranks_where(
      reports, [](const BackwardReport& report) { return report.has(BackwardReport::kJoined); });
  if (weighted.empty() || weighted.size() + joined.size() == reports.size()) return;
  throw BackwardError(
      "loss-weight-missing",
      subject(context, reports.size()) + ": only " +
          text_of_ranks(weighted, world_size_of(reports)) + " gave the loss a weight.",
      "a weighted average needs a weight from every rank.",
      "call set_loss_weight() on every rank before backward, or on none.", {weighted, kBackward});
}

}  // namespace

std::string nonfinite_gradients(const std::vector<BackwardReport>& reports,
                                const BackwardContext& context,
                                const std::function<size_t(size_t)>& bucket_of) {
  std::string text;
  for (size_t index = 0; index < context.parameters.size(); ++index) {
    const Ranks ranks = ranks_where(reports, [&](const BackwardReport& report) {
      return report.nonfinite == static_cast<int64_t>(index);
    });
    if (ranks.empty()) continue;
    text += (text.empty() ? " of '" : ", of '") + context.parameters[index] + "' (bucket " +
            std::to_string(bucket_of(index)) + ") on " +
            text_of_ranks(ranks, world_size_of(reports));
  }
  return subject(context, reports.size()) + ": gradients have an Inf or NaN, the first" + text +
         ".";
}

void throw_skipped(const std::vector<int>& ranks, const std::string& parameter,
                   const BackwardContext& context, size_t world_size) {
  throw BackwardError(
      "skipped-unused",
      subject(context, world_size) + ": all parameters of the bucket with '" + parameter +
          "' were unused on " + text_of_ranks(ranks, static_cast<int>(world_size)) +
          " and skipped there, but used on other ranks.",
      "with skip_all_reduce_unused_params such a bucket is not reduced, so all ranks must leave "
      "the same parameters unused.",
      "zero the gradients on every rank; use the same parameters on all ranks, or leave "
      "skip_all_reduce_unused_params out.",
      {ranks, kBackward});
}

void throw_other_plan(size_t rank, const std::string& group) {
  throw BackwardError("different-gradients",
                      "the gradients of ranks 0 and " + std::to_string(rank) + " in group '" +
                          group + "' do not match.",
                      "parameters differ in dtype, device or requires_grad, or the ranks use "
                      "different bucket caps or wire dtypes.",
                      "change the module in the same way on every rank, and pass the same options.",
                      {{static_cast<int>(rank)}, kBackward});
}

void throw_nonfinite(const std::string& text, const std::vector<BackwardReport>& reports) {
  throw BackwardError(
      "gradient-nonfinite", text,
      "report_nonfinite or FARANDOLE_CHECK_FINITE is \"raise\". All gradients were removed on "
      "every rank, so that no parameter is updated with them.",
      "check the batch of that rank and the operations on the parameter (log or sqrt of 0, float16 "
      "without a GradScaler); to leave such batches out, use \"skip\".",
      {ranks_where(reports, [](const BackwardReport& report) { return report.nonfinite >= 0; }),
       kBackward});
}

void check_backward(const std::vector<BackwardReport>& reports, const BackwardContext& context) {
  const auto abandoned = [](const BackwardReport& report) {
    return report.has(BackwardReport::kAbandoned);
  };
  check_abandoned(reports, context);
  if (std::any_of(reports.begin(), reports.end(), abandoned)) return;
  check_forwards(reports, context);
  for (size_t rank = 1; rank < reports.size(); ++rank) {
    if (reports[rank].plan != reports[0].plan) throw_other_plan(rank, context.group);
  }
  if (!context.reduced) {
    check_hooks(reports, context);
    check_late(reports, context);
    check_missing(reports, context);
  }
  check_weights(reports, context);
}

}  // namespace farandole
