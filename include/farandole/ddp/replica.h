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
#include "farandole/ddp/reducer.h"
#include "farandole/ddp/replica_check.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/export.h"

namespace farandole {

/// How replicas are kept alike; the meaning of each is torch's.
struct ReplicaOptions {
  /// Rank 0's buffers to all before each synchronized forward; when rank 0 has joined, those of the
  /// lowest rank that has not.
  bool broadcast_buffers = true;
  bool init_sync = true;  ///< compare the modules and send rank 0's state to all at the start
  bool find_unused_parameters = false;
  bool static_graph = false;
  /// With find_unused_parameters, a bucket in which no parameter got a gradient is not reduced, and
  /// their p.grad stay as they are. All ranks must leave the same parameters unused, and none may
  /// join early; without effect beside a sharded optimizer to which averaging is left.
  bool skip_all_reduce_unused_params = false;
  /// MiB of a bucket; nullopt: what suits the group, 1 on shared memory and 25 elsewhere.
  std::optional<double> bucket_cap_mb = {};
  /// MiB of the first buckets one by one; empty: a small first one.
  std::vector<double> bucket_cap_mb_list = {};
  /// What becomes of a backward in which a gradient has an Inf or NaN; the strictest of all ranks
  /// holds. nullopt: as FARANDOLE_CHECK_FINITE tells.
  std::optional<NonfinitePolicy> report_nonfinite = {};
  /// at::kBFloat16 or at::kHalf: what gradients of float32 and float64 travel as, in half or a
  /// quarter of their bytes; nullopt: as they are. Those of half types travel as they are, but as
  /// at::kFloat in float32, twice as many bytes, for other backends to add them up in it; a sharded
  /// optimizer to which averaging is left does so in any case. Averages are cast as CompressHook
  /// does. It changes nothing where no gradient travels: on groups with shared memory, whose ranks
  /// read each other's. In place of a communication hook. The same on every rank.
  std::optional<at::ScalarType> wire_dtype = {};
  /// Names of parameters and buffers that stay as they are on each rank.
  std::set<std::string> ignored = {};
  /// Names of parameters whose gradients are sparse tensors.
  std::set<std::string> sparse = {};
};

class Replica;

/// How to find a Replica as long as it is there. Threads: one at a time.
struct ReplicaLink {
  Replica* replica;  ///< null when it is gone
};

/// One rank's copy of a model: what C++ and Python modules have in common. It knows tensors alone;
/// whoever runs the forward tells it before and after.
///
/// Threads: those of Reducer. Making one, set_group(), before_forward() with buffers and
/// broadcast() are collectives.
class FARANDOLE_API Replica {
 public:
  Replica(NamedTensors parameters, NamedTensors buffers, const Group& group,
          ReplicaOptions options);
  ~Replica();
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;
  /// The one that has `parameter`, which may be any; null if none has.
  static std::shared_ptr<ReplicaLink> of(const at::Tensor& parameter);

  /// Before a forward. Sends buffers to all, if they are to be kept alike and this pass is
  /// synchronized; tells peers of an abandoned backward.
  void before_forward();
  /// After it, with every tensor among its outputs that may need gradients.
  void after_forward(const std::vector<at::Tensor>& outputs);
  /// Instead of after_forward(): it threw.
  void forward_failed();

  /// Whether passes are synchronized whose forward begins from now on.
  void set_synchronize(bool synchronize) { synchronize_ = synchronize; }
  bool synchronizes() const { return synchronize_; }
  /// See Reducer::set_loss_weight().
  void set_loss_weight(std::optional<double> weight);
  void set_hook(std::shared_ptr<c10d::CommHookInterface> hook);

  /// Sends parameters and buffers of `root` to all.
  void broadcast(int root = 0);
  /// Sends the buffers of `root` to all.
  void broadcast_buffers(int root = 0);
  /// Whether before_forward() would send buffers.
  bool will_send_buffers() const;
  /// Takes part in one backward of the others; see Reducer::join_backward(). Calls end_join() if
  /// all have joined.
  bool join_backward(double weight = 0);
  /// If this rank took part in backwards of others: drops p.grad, which has their averages, as if
  /// it had just been zeroed. Local.
  void end_join();

  /// From now on these are the ranks, for example after a shrink: plans anew. Gradients, the hook
  /// and the weight stay.
  void set_group(const Group& group);
  /// From now on these are the tensors, after the module has got others by the same names. Plans
  /// anew if parameters are among them.
  void set_tensors(NamedTensors parameters, NamedTensors buffers);

  /// Leaves averaging to a sharded optimizer until set_group() or other parameters in
  /// set_tensors(); see Reducer::set_sharded().
  void set_sharded(std::optional<ShardedGradients> sharded);
  bool is_sharded() const { return sharded_.has_value(); }
  /// Whether averaging is left to `owner`.
  bool is_sharded_by(const void* owner) const { return sharded_ && sharded_->owner == owner; }
  /// Calls `function` before each forward, until `owner` has an empty one: for an optimizer whose
  /// new parameters may still be under way.
  void set_before_forward(const void* owner, std::function<void()> function);
  /// Calls those functions, for whoever reads parameters otherwise.
  void await_parameters() const;
  /// As Reducer tells.
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

  const std::shared_ptr<ReplicaLink> link_ = std::make_shared<ReplicaLink>(ReplicaLink{this});
  ReplicaOptions options_;
  std::shared_ptr<ReplicaGroup> group_;
  NonfinitePolicy report_nonfinite_ = NonfinitePolicy::kOff;
  NamedTensors parameters_;  ///< without the ignored ones
  NamedTensors buffers_;     ///< likewise
  bool synchronize_ = true;
  std::optional<double> loss_weight_;
  std::shared_ptr<c10d::CommHookInterface> hook_;
  std::optional<ShardedGradients> sharded_;
  std::map<const void*, std::function<void()>> awaits_;  ///< by owner
  bool took_part_ = false;  ///< in backwards of others, since the last end_join()
  std::shared_ptr<Reducer> reducer_;
};

/// Caps of the buckets for a group, as `options` ask: see ReplicaOptions.
FARANDOLE_API BucketCaps bucket_caps(const ReplicaOptions& options, const ReplicaGroup& group);

}  // namespace farandole
