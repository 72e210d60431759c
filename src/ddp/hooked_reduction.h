// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/comm.hpp>
#include <vector>

#include "ddp/rank_reports.h"
#include "farandole/ddp/bucket.h"
#include "farandole/ddp/bucket_consumer.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

/// Passes each bucket to a communication hook as soon as it is its turn; works with any group. The
/// end of backward exchanges one additional small report.
///
/// If a hook throws, or a future holds an error or is never completed, the round fails on all ranks
/// at its end. Until then the other ranks wait in the collectives that were not started. A hook
/// that threw before it started a collective is called again. If it still starts none, and the
/// group is a Farandole group, this rank starts a barrier instead: the collective of the other
/// ranks ends with a MismatchError, before any tensor is touched. The ranks exchange how many
/// collectives they started, and those that started fewer make up for it, so that the group stays
/// in step.
class HookedReduction final : public BucketConsumer {
 public:
  /// What the hook does with gradients.
  enum class Result {
    kAverages,   ///< its future has averages, which become the bucket's contents
    kElsewhere,  ///< it keeps its result; buckets stay unchanged
  };

  struct Options {
    Result result = Result::kAverages;
    /// The hook is one of ours and talks through ReplicaGroup::group(), as reports do, so that all
    /// ranks meet its mismatches. Other hooks use the program's group.
    bool uses_group_apart = false;
    size_t report_bytes = 0;
    size_t detail_bytes = 0;  ///< at the end of reports; see RankReports
  };

  /// `parameters`: of each bucket, in the order of its slots. `hook` may be null if its result is
  /// elsewhere: then nothing is done.
  HookedReduction(std::shared_ptr<const Buckets> buckets,
                  std::vector<std::vector<at::Tensor>> parameters,
                  std::shared_ptr<ReplicaGroup> group,
                  std::shared_ptr<c10d::CommHookInterface> hook, const Options& options);

  bool in_plan_order() const override { return true; }
  void begin(double weight, bool checks_finite) override;
  void launch(size_t bucket) override;
  void skip(size_t bucket) override;
  void launch_rest() override;
  void join_streams() noexcept override;
  bool finish(const RankReport& report, bool complete) override;
  std::exception_ptr failure() const override;
  std::optional<size_t> failed_bucket_of(int rank) const override;
  const std::byte* report_of(int rank) const override;
  comm::BucketTimes times_of(size_t bucket) const override { return times_[bucket]; }

 private:
  /// What goes before a report, and before a byte for each bucket: has_nonfinite_.
  struct Head {
    uint64_t complete;
    double weight;
    uint64_t failed;    ///< the bucket + 1 for which something failed; 0: nothing has
    uint64_t left_out;  ///< collectives that peers waited in, and failed too
    uint64_t started;   ///< collectives of the program's group in this round
  };

  c10d::GradBucket bucket_for_hook(size_t bucket) const;
  void run_hook(size_t bucket);
  void await(size_t bucket);
  void join_stream(size_t bucket) const;
  [[noreturn]] void throw_never_completed(size_t bucket) const;
  void note_failure(size_t bucket, std::exception_ptr error);
  c10::intrusive_ptr<ProcessGroupFarandole> own_backend() const;
  c10::intrusive_ptr<ProcessGroupFarandole> backend_of_hook() const;
  bool is_group_over() const;
  bool all_ranks_know() const;
  uint64_t started() const;
  void start_barrier();
  void make_up();
  bool are_uncompared() const;
  void poison();
  void poison_on_device();
  void collect(size_t bucket);
  void exchange(const RankReport& report, bool complete);
  void look_for_nonfinite(size_t bucket);
  void divide_by_weights();

  const std::shared_ptr<const Buckets> buckets_;
  const std::vector<std::vector<at::Tensor>> parameters_;
  const std::shared_ptr<ReplicaGroup> group_;
  const std::shared_ptr<c10d::CommHookInterface> hook_;
  /// Of torch's interface and no CommHook. Those may start collectives when their first one is done
  /// (torch's PowerSGD): were two under way, ranks would start them in different orders. And they
  /// may lose an Inf or NaN, which buckets are looked at for; then averages become NaN.
  const bool is_foreign_;
  const Options options_;
  double weight_ = 1;
  size_t launched_ = 0;
  std::exception_ptr failure_;            ///< the first of this rank in the last backward
  size_t failed_bucket_ = 0;              ///< what it is of
  uint64_t left_out_ = 0;                 ///< barriers in place of collectives, before make_up()
  uint64_t started_at_begin_ = 0;         ///< collectives of the program's group
  std::vector<uint64_t> started_before_;  ///< the same, before each bucket's
  std::vector<c10::intrusive_ptr<c10d::Work>> barriers_;  ///< in place of others
  std::vector<bool> is_skipped_;                          ///< by bucket
  std::vector<bool> is_awaited_;                          ///< by bucket
  std::vector<uint8_t> has_nonfinite_;           ///< by bucket, if the hook is foreign; of the CPU
  std::vector<at::Tensor> nonfinite_on_device_;  ///< the same of an accelerator; its 0 or 1
  std::vector<c10::intrusive_ptr<c10::ivalue::Future>> futures_;  ///< of the hook, by bucket
  std::vector<at::Tensor> results_;  ///< of the hook, by bucket, until they are in the buckets
  std::vector<comm::BucketTimes> times_;
  RankReports<Head> reports_;  ///< in the last finish()
};

}  // namespace farandole
