// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/data/samplers/distributed.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "farandole/data/epoch_share.h"
#include "farandole/export.h"

namespace farandole {

/// Base of the samplers for torch::data::make_data_loader(), which takes them by value: copies
/// share their epoch and position, so keep one to call set_epoch() and state().
///
///   farandole::DistributedSampler sampler(dataset.size().value());
///   auto loader = torch::data::make_data_loader(std::move(dataset), sampler, /*batch_size=*/32);
///   for (size_t epoch = sampler.epoch(); epoch < epochs; ++epoch) {
///     sampler.set_epoch(epoch);
///     for (auto& batch : *loader) ...
///   }
///
/// Errors: InvalidArgument. Threads: one call at a time on all copies; a loader calls them in the
/// thread that iterates over it.
class FARANDOLE_API EpochSampler : public torch::data::samplers::DistributedSampler<> {
 public:
  /// Another epoch begins at its beginning. The same one keeps the position of a loaded state.
  void set_epoch(size_t epoch);
  size_t epoch() const;
  /// Samples of this rank in the pass through the data that is next or in progress.
  size_t size() const;

  /// After this rank has taken `consumed` samples of the pass (batches of a batch sampler), for a
  /// checkpoint from which any number of ranks can go on: see SamplerState. A loader with workers
  /// has asked for more samples than the training has taken, so count those of the training:
  /// batches * batch_size. With even_divisible = false, call it on rank 0.
  SamplerState state(size_t consumed) const;
  /// The next pass begins at the position of the state; call it on all ranks. Throws
  /// InvalidArgument, and changes nothing, if it is a state of other data.
  void load_state(const SamplerState& state);
  /// Throws if load_state() would.
  void check_state(const SamplerState& state) const;

  /// Begins a pass. Throws InvalidArgument for another size than that of the dataset.
  void reset(std::optional<size_t> new_size = std::nullopt) override;
  /// The next indices of the pass, at most batch_size; nullopt at its end.
  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  /// Writes state(consumed).
  void save(torch::serialize::OutputArchive& archive, size_t consumed) const;
  /// LibTorch's interface, with the samples that next() has returned as consumed: right for a
  /// loader without workers.
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  explicit EpochSampler(int64_t size, EpochShare share);

  struct Pass {
    EpochShare share;
    bool has_begun = false;
    std::vector<std::vector<int64_t>> batches;  ///< of a batch sampler
    std::vector<int64_t> indices;               ///< of others
    size_t next = 0;                            ///< batch or index
  };
  Pass& pass() const { return *pass_; }
  /// Fills the pass.
  virtual void begin();

 private:
  void follow_epoch();

  std::shared_ptr<Pass> pass_;
  size_t known_epoch_ = 0;  // that LibTorch's set_epoch() may have changed
};

}  // namespace farandole
