// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "farandole/ddp/replica.h"
#include "farandole/optim/shard_plan.h"
#include "optim/step/gradient_scatter.h"

namespace farandole {

/// Where a step reads the gradients of parameters. Threads: one at a time.
class GradientSources {
 public:
  virtual ~GradientSources();
  /// Finds the gradients of this step. Throws InvalidArgument or NotSupported with the parameter.
  virtual void look(const std::vector<at::Tensor>& parameters,
                    const std::vector<std::string>& names) = 0;
  /// Appends the addresses of element `offset` of a parameter's gradient to `addresses`, count() of
  /// them. The same element is at `shard_offset` in this rank's shard of `bucket`.
  virtual void append(size_t parameter, int64_t offset, size_t bucket, int64_t shard_offset,
                      std::vector<const void*>& addresses) const = 0;
  /// The elements of a piece of this rank, or of a whole parameter, as a tensor of one dimension.
  /// Of sources that are no addresses of other ranks.
  virtual at::Tensor tensor_of(size_t parameter, const ShardPiece& piece) const = 0;
  virtual size_t count() const { return 1; }
  /// The dtype of the gradients of parameters of `dtype` in `bucket`.
  virtual at::ScalarType dtype_of(size_t /*bucket*/, at::ScalarType dtype) const { return dtype; }
  /// Releases all gradients.
  virtual void release() {}
  /// The divisor of their sum.
  virtual double divisor() const { return 1; }
};

/// p.grad, which is the average.
class AveragedGradients final : public GradientSources {
 public:
  void look(const std::vector<at::Tensor>& parameters,
            const std::vector<std::string>& names) override;
  void append(size_t parameter, int64_t offset, size_t bucket, int64_t shard_offset,
              std::vector<const void*>& addresses) const override;
  at::Tensor tensor_of(size_t parameter, const ShardPiece& piece) const override;
  void release() override { gradients_.clear(); }

 private:
  std::vector<at::Tensor> gradients_;  ///< in the order of the parameter's memory
};

/// p.grad of every rank, in the symmetric memory of the Reducer's buckets.
class PeerGradients final : public GradientSources {
 public:
  /// `owner`: the optimizer that the Replica leaves averaging to.
  PeerGradients(std::shared_ptr<ReplicaLink> replica, const void* owner)
      : replica_(std::move(replica)), owner_(owner) {}
  void look(const std::vector<at::Tensor>& parameters,
            const std::vector<std::string>& names) override;
  void append(size_t parameter, int64_t offset, size_t bucket, int64_t shard_offset,
              std::vector<const void*>& addresses) const override;
  at::Tensor tensor_of(size_t parameter, const ShardPiece& piece) const override;
  size_t count() const override;
  double divisor() const override;

 private:
  void find_places(const std::vector<at::Tensor>& parameters);

  const std::shared_ptr<ReplicaLink> replica_;
  const void* const owner_;
  std::shared_ptr<const Buckets> buckets_;
  std::vector<int64_t> places_;  ///< by parameter: bytes from the start of the memory; or -1
  std::vector<size_t> element_bytes_;
};

/// The sums that a GradientScatter has left in this rank's shards.
class ScatteredGradients final : public GradientSources {
 public:
  ScatteredGradients(std::shared_ptr<ReplicaLink> replica, const void* owner,
                     std::shared_ptr<GradientScatter> scatter)
      : replica_(std::move(replica)), owner_(owner), scatter_(std::move(scatter)) {}
  void look(const std::vector<at::Tensor>& parameters,
            const std::vector<std::string>& names) override;
  void append(size_t parameter, int64_t offset, size_t bucket, int64_t shard_offset,
              std::vector<const void*>& addresses) const override;
  at::Tensor tensor_of(size_t parameter, const ShardPiece& piece) const override;
  at::ScalarType dtype_of(size_t bucket, at::ScalarType) const override {
    return scatter_->shard(bucket).scalar_type();
  }
  double divisor() const override;

 private:
  const std::shared_ptr<ReplicaLink> replica_;
  const void* const owner_;
  const std::shared_ptr<GradientScatter> scatter_;
};

}  // namespace farandole
