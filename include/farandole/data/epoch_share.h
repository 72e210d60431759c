// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// How samplers divide an epoch among ranks; the same on all ranks but for `rank`.
struct SamplerOptions {
  std::optional<int64_t> num_replicas = {};  ///< default: the ranks of the default group
  std::optional<int64_t> rank = {};          ///< default: that in the default group
  int64_t seed = 0;
  /// Leaves out the samples at the end that the ranks cannot share equally. Otherwise samples from
  /// the beginning of the epoch are added until they can.
  bool drop_last = false;
  /// If false, nothing is left out and nothing added: each sample is there once, and some ranks
  /// have one more than others.
  bool even_divisible = true;
};

/// The place of a training in its data: integers by name. It is the same on all ranks, whose number
/// may change: "epoch", "seed", "position" (samples that all ranks together have taken from the
/// order of the epoch; batches in a batch sampler) and, to compare, the size and kind of the order.
using SamplerState = std::map<std::string, int64_t>;

/// The share of one rank in each epoch, which the samplers of C++ and Python have in common. The
/// order of an epoch is a function of seed + epoch alone. Of what is left of it from a position on,
/// rank r of N takes r, r + N, r + 2 N and so on, as in torch's DistributedSampler; so whatever N
/// was before the position, no sample is repeated or left out after it.
///
/// Errors: InvalidArgument. Threads: one call at a time.
class FARANDOLE_API EpochShare {
 public:
  using Order = std::function<std::vector<int64_t>(uint64_t seed)>;

  /// `size`: indices in an order. They are shared in units of batch_size. `kind`: what a state has
  /// to have in common with this, in addition to the size. Throws InvalidArgument unless
  /// 0 <= rank < num_replicas, and if drop_last is combined with even_divisible = false.
  EpochShare(int64_t size, Order order, const SamplerOptions& options, SamplerState kind = {},
             int64_t batch_size = 1);

  int64_t num_replicas() const { return num_replicas_; }
  int64_t rank() const { return rank_; }
  int64_t seed() const { return seed_; }
  int64_t epoch() const { return epoch_; }
  /// Units of this rank in the pass through the data that is next or in progress.
  int64_t length() const;
  /// Those of all ranks.
  int64_t total_length() const;

  /// Another epoch begins at its beginning. The same one keeps the position of a loaded state.
  /// Throws InvalidArgument if epoch < 0.
  void set_epoch(int64_t epoch);

  /// Begins a pass and returns the indices of this rank, or its batches of them. The first pass
  /// after load_state() begins at the position of the state, all others at the beginning.
  std::vector<int64_t> begin_pass();
  std::vector<std::vector<int64_t>> begin_batches();
  /// Where begin_pass() would begin.
  int64_t next_position() const { return has_begun_ ? 0 : start_; }

  /// After this rank has taken `consumed` units of the pass. All ranks have taken as many; with
  /// even_divisible = false, where one may have a unit less, call it on rank 0.
  SamplerState state(int64_t consumed) const;
  /// Throws InvalidArgument, and changes nothing, if it is a state of other data.
  void load_state(const SamplerState& state);
  /// Throws if load_state() would.
  void check_state(const SamplerState& state) const;

 private:
  int64_t units() const;
  std::vector<int64_t> positions() const;  // of this rank's units in the order
  std::vector<int64_t> begin_order();

  int64_t size_;
  Order order_;
  SamplerState kind_;
  int64_t batch_size_;
  int64_t num_replicas_;
  int64_t rank_;
  int64_t seed_;
  bool drop_last_;
  bool even_divisible_;
  int64_t epoch_ = 0;
  int64_t start_ = 0;       // in units, of the pass that is next or in progress
  bool has_begun_ = false;  // a pass, since the epoch was set or a state was loaded
};

}  // namespace farandole
