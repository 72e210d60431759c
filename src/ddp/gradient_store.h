// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddp/backward_report.h"
#include "ddp/deferred_moves.h"
#include "ddp/parameter_gradient.h"
#include "ddp/planned_buckets.h"
#include "farandole/comm/fingerprint.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

/// Where the gradients of a model are: of each parameter the slot in its bucket, p.grad, and what
/// p.grad was before a backward that had no gradient for it.
///
/// Threads: one call at a time. Indices are those of the parameters.
class GradientStore {
 public:
  /// `plan`: that of the Reducer; lives longer.
  explicit GradientStore(PlannedBuckets& plan) : plan_(plan) {}
  void add(std::string name, at::Tensor parameter, bool sparse);

  size_t size() const { return parameters_.size(); }
  ParameterGradient& operator[](size_t index) { return *parameters_[index]; }
  const ParameterGradient& operator[](size_t index) const { return *parameters_[index]; }
  const std::vector<std::string>& names() const { return names_; }
  std::vector<at::Tensor> parameters() const;
  /// Of all parameters, without gaps.
  int64_t bytes() const;
  /// Whether a parameter is on one.
  bool has_accelerators() const;
  /// Whether a parameter has changed what a plan depends on since its last renew().
  bool has_changed() const;
  std::vector<ParameterKind> kinds() const;
  /// Of which parameters get gradients.
  comm::Fingerprint active_parameters() const;
  /// Whether the graph task on this thread may add to p.grad of a parameter.
  bool are_reached() const;

  /// Assigns each parameter its slot in the buckets of the plan.
  void assign_slots();
  /// The tensors of those slots, by parameter.
  std::vector<SlotTensor> slots() const;
  /// What may be done with a gradient that arrives.
  struct Use {
    bool slot = false;   ///< put it into its slot
    bool later = false;  ///< copy it there when finish_moves() of its bucket is called
  };
  /// Moves a gradient into its bucket, if it was not born there. Returns what autograd is to add to
  /// p.grad: nothing, unless there is no slot, or it is not to be used.
  at::Tensor take(size_t index, const at::Tensor& gradient, double factor, Use may);
  /// A backward begins in which take() may leave copies to finish_moves().
  void begin_moves(size_t buckets) { moves_.begin(buckets); }
  /// Copies gradients of accelerators that wait for it into the bucket; see DeferredMoves.
  void finish_moves(size_t bucket) { moves_.finish(bucket); }
  /// Into all buckets.
  void finish_moves() { moves_.finish_all(); }
  /// A gradient of the parameter has arrived.
  void touch(size_t index) {
    was_touched_[index] = true;
    parameters_[index]->note_written();
  }
  /// Whether one has since the last synchronized backward.
  bool was_touched(size_t index) const { return was_touched_[index]; }
  /// Moves every p.grad that the program has set to another tensor into its slot.
  void move_into_slots();
  /// Moves every p.grad out of its slot, where averages may still be stored. What the program has
  /// set to zeros since its gradient arrived becomes zeros again. Does not throw.
  void leave_slots() noexcept;
  /// p.grad of all active parameters = None.
  void drop();

  /// Fills the slot of a parameter without a gradient in this backward: with zeros, or with what
  /// p.grad has from earlier ones. `is_joined`: this rank has nothing to add.
  void fill_missing(size_t index, bool is_joined);
  /// After the averages are there, p.grad of those parameters: the average if another rank had a
  /// gradient, otherwise what it was before.
  void publish_missing(const std::vector<BackwardReport>& reports);
  /// After the averages are there, every p.grad that stayed outside of its slot.
  void publish_outside();
  /// Averages sparse gradients, which have no slot, one by one. Collective.
  void average_sparse(const std::vector<BackwardReport>& reports, const ReplicaGroup& group,
                      bool is_joined);
  /// Says once that the program has written a parameter since its gradient arrived, as an optimizer
  /// in a hook does, whose gradients are no averages yet.
  void warn_of_written_parameters(int rank);
  /// The optimizer will find this p.grad; see ParameterGradient::is_other_result().
  void note_results();
  /// The backward is over.
  void end_backward();

  /// Whether the program has dropped what the passes so far have added up.
  bool are_gone() const;
  /// Whether some p.grad is left of an earlier average, or was set by the program.
  bool has_old_ones() const;
  /// Bytes of gradients that were copied since the last synchronized backward.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  PlannedBuckets& plan_;
  DeferredMoves moves_;
  std::vector<std::unique_ptr<ParameterGradient>> parameters_;
  std::vector<std::string> names_;
  std::vector<bool> was_touched_;
  bool has_warned_of_written_ = false;
  /// Parameters without a gradient in this backward, and a copy of the p.grad that they had.
  std::vector<std::pair<size_t, at::Tensor>> missing_;
  int64_t copied_bytes_ = 0;
};

}  // namespace farandole
