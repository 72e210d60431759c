// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "farandole/config.h"
#include "farandole/ddp/pass_weight.h"
#include "farandole/ddp/reducer.h"
#include "farandole/ddp/replica_check.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/export.h"

namespace farandole {

/// Options of DistributedDataParallel, with the same meaning as in torch.
struct ReplicaOptions {
  /// Send rank 0's buffers to all ranks before each synchronized forward; if rank 0 has joined,
  /// those of the lowest rank that has not.
  bool broadcast_buffers = true;
  bool init_sync = true;  ///< compare the modules and send rank 0's state to all at the start
  bool find_unused_parameters = false;
  bool static_graph = false;
  /// With find_unused_parameters, do not reduce a bucket in which no parameter got a gradient; the
  /// p.grad of its parameters are unchanged. All ranks must leave the same parameters unused, and
  /// none may join early. No effect if a sharded optimizer averages gradients.
  bool skip_all_reduce_unused_params = false;
  /// MiB of a bucket; nullopt: 1 in shared memory, 25 elsewhere.
  std::optional<double> bucket_cap_mb = {};
  /// MiB of the first buckets one by one; empty: a small first bucket.
  std::vector<double> bucket_cap_mb_list = {};
  /// What happens if a gradient has an Inf or NaN; the strictest policy of all ranks applies.
  /// nullopt: FARANDOLE_CHECK_FINITE.
  std::optional<NonfinitePolicy> report_nonfinite = {};
  /// The type in which gradients are sent; nullopt: their own. at::kBFloat16 or at::kHalf:
  /// gradients of float32 and float64 are sent in half or a quarter of their bytes, and gradients
  /// of half types unchanged. at::kFloat: gradients of half types are sent as float32, in twice as
  /// many bytes, so that other backends add in float32; a sharded optimizer that averages gradients
  /// adds in float32 in any case. Averages are cast as by CompressHook. No effect on groups with
  /// shared memory, whose ranks read each other's gradients. Excludes a communication hook. The
  /// same on every rank.
  std::optional<at::ScalarType> wire_dtype = {};
  /// Names of parameters and buffers that are not synchronized.
  std::set<std::string> ignored = {};
  /// Names of parameters whose gradients are sparse tensors.
  std::set<std::string> sparse = {};
};

class Replica;

/// A pointer to a Replica that becomes null when the Replica is destroyed. Threads: one at a time.
struct ReplicaLink {
  Replica* replica;  ///< null after its destruction
};

/// One rank's copy of a model, the common part of the C++ and Python wrappers. It knows tensors,
/// not modules; the wrapper that runs the forward calls it before and after.
///
/// Threads: as Reducer. The constructor, set_group(), before_forward() with buffers and broadcast()
/// are collectives.
class FARANDOLE_API Replica {
 public:
  Replica(NamedTensors parameters, NamedTensors buffers, const Group& group,
          ReplicaOptions options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  /// The Replica that has `parameter` (any tensor); null if none has.
  static std::shared_ptr<ReplicaLink> of(const at::Tensor& parameter);

  /// Call before a forward. Sends buffers to all ranks if broadcast_buffers is set and this pass is
  /// synchronized. Reports an abandoned backward to the other ranks.
  void before_forward();
  /// Call after the forward, with the output tensors that may need gradients. A backward from a
  /// tensor that is not among them begins at the first parameter that it reaches.
  void after_forward(const std::vector<at::Tensor>& outputs);
  /// Call instead of after_forward() if the forward threw.
  void forward_failed();

  /// Whether later passes are synchronized.
  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronizes() const { return synchronize_; }
  /// Number of forward passes so far whose backward has reached a parameter.
  uint64_t passes() const { return earlier_passes_ + reducer_->passes(); }
  /// See Reducer::set_loss_weight().
  void set_loss_weight(std::optional<double> weight);
  /// Follows set_loss_weight().
  std::shared_ptr<PassWeight> pass_weight() const { return pass_weight_; }
  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook);

  /// Sends parameters and buffers of `root` to all.
  void broadcast(int root = 0);
  /// Sends the buffers of `root` to all.
  void broadcast_buffers(int root = 0);
  /// Whether before_forward() would send buffers.
  bool will_send_buffers() const;
  /// Reports a backward that an exception has left; see Reducer::end_abandoned().
  void end_abandoned() { reducer_->end_abandoned(); }
  /// Takes part in one backward of the other ranks; see Reducer::join_backward(). Calls end_join()
  /// if all ranks have joined.
  bool join_backward(double weight = 0);
  /// Whether the last join_backward() ended in an error on the other ranks, which then do not step.
  /// False before the first one, after end_join() and after a forward of this rank.
  bool join_failed() const { return join_failed_; }
  /// If this rank took part in backward passes of the others, drops p.grad, which has their
  /// averages, as zero_grad() would. Local.
  void end_join();

  /// Continues with the ranks of `group`, for example after a shrink, and makes a new plan.
  /// Gradients, the hook and the loss weight are kept.
  void set_group(const Group& group);
  /// Continues with these tensors, if the module has new tensors by the same names. Makes a new
  /// plan if parameters have changed.
  void set_tensors(NamedTensors parameters, NamedTensors buffers);

  /// Leaves averaging to a sharded optimizer until set_group() or until set_tensors() with new
  /// parameters; see Reducer::set_sharded().
  void set_sharded(std::optional<ShardedGradients> sharded);
  bool is_sharded() const { return sharded_.has_value(); }
  /// Whether `owner` averages gradients.
  bool is_sharded_by(const void* owner) const { return sharded_ && sharded_->owner == owner; }
  /// Calls `function` before each forward, until it is set to an empty function for `owner`. For
  /// optimizers whose new parameters may still be in transfer.
  void set_before_forward(const void* owner, std::function<void()> function);
  /// Calls these functions, for code that reads parameters outside of a forward.
  void await_parameters() const;
  const std::shared_ptr<Reducer>& reducer() const { return reducer_; }
  const NamedTensors& parameters() const { return parameters_; }

  const ReplicaGroup& group() const { return *group_; }
  const std::shared_ptr<ReplicaGroup>& shared_group() const { return group_; }
  const ReplicaOptions& options() const { return options_; }
  BackwardStats stats() const { return reducer_->stats(); }
  BucketPlan plan() const { return reducer_->plan(); }

 private:
  NonfinitePolicy strictest_policy() const;
  std::shared_ptr<Reducer> make_reducer() const;
  std::shared_ptr<Reducer> replace_reducer();

  const std::shared_ptr<ReplicaLink> link_ = std::make_shared<ReplicaLink>(ReplicaLink{this});
  ReplicaOptions options_;
  std::shared_ptr<ReplicaGroup> group_;
  NonfinitePolicy report_nonfinite_ = NonfinitePolicy::kOff;
  NamedTensors parameters_;  ///< without the ignored ones
  NamedTensors buffers_;     ///< likewise
  bool synchronize_ = true;
  std::optional<double> loss_weight_;
  const std::shared_ptr<PassWeight> pass_weight_ = std::make_shared<PassWeight>();
  std::shared_ptr<c10d::CommHookInterface> hook_;
  std::optional<ShardedGradients> sharded_;
  std::map<const void*, std::function<void()>> awaits_;  ///< by owner
  bool join_failed_ = false;                             ///< see join_failed()
  bool took_part_ = false;       ///< in backward passes of others, since the last end_join()
  uint64_t earlier_passes_ = 0;  ///< passes() of earlier reducers
  std::shared_ptr<Reducer> reducer_;
};

/// The bucket caps for a group according to `options`.
FARANDOLE_API BucketCaps bucket_caps(const ReplicaOptions& options, const ReplicaGroup& group);

}  // namespace farandole
