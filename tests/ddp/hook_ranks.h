// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "farandole/ddp/comm_hook.h"
#include "farandole/process_group/collectives.h"
#include "process_group/group_ranks.h"

namespace farandole::test {

/// A backend that is not ours and knows no AVG, such as gloo, whose headers torch does not install.
class SummingBackend : public c10d::Backend {
 public:
  explicit SummingBackend(GroupPointer inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return "summing"; }

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override {
    EXPECT_EQ(opts.reduceOp, c10d::ReduceOp::SUM);
    return inner_->allreduce(tensors, opts);
  }

 private:
  const GroupPointer inner_;
};

/// Runs `body` on ranks that are threads, each with a group of `backend`, "farandole" or "summing".
/// Rethrows the first error of the lowest rank.
inline void run_hook_ranks(const std::string& backend, int world_size,
                           const std::function<void(const Group&)>& body) {
  run_group_pointers(world_size, [&](const GroupPointer& ours) {
    const bool summing = backend == "summing";
    body(summing ? group_around(c10::make_intrusive<SummingBackend>(ours)) : group_around(ours));
  });
}

/// A bucket of a reducer: parameters whose gradients lie in one buffer.
class HandMadeBucket {
 public:
  HandMadeBucket(size_t index, size_t bucket_count, std::vector<at::Tensor> parameters)
      : index_(index), bucket_count_(bucket_count), parameters_(std::move(parameters)) {}

  /// With these gradients, in a buffer of its own.
  c10d::GradBucket with(const std::vector<at::Tensor>& gradients) const {
    std::vector<size_t> offsets;
    std::vector<size_t> lengths;
    std::vector<c10::IntArrayRef> sizes;
    std::vector<at::Tensor> flat;
    size_t end = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      offsets.push_back(end);
      lengths.push_back(static_cast<size_t>(gradients[i].numel()));
      sizes.push_back(parameters_[i].sizes());
      flat.push_back(gradients[i].reshape({-1}));
      end += lengths.back();
    }
    return c10d::GradBucket(index_, bucket_count_, at::cat(flat), offsets, lengths, sizes,
                            parameters_, std::nullopt);
  }

 private:
  const size_t index_;
  const size_t bucket_count_;
  const std::vector<at::Tensor> parameters_;
};

/// The only bucket of a model with one parameter, with its gradient.
inline c10d::GradBucket bucket_of(const at::Tensor& gradient, const at::Tensor& parameter) {
  return HandMadeBucket(0, 1, {parameter}).with({gradient});
}

/// What `hook` makes of `bucket`, flat.
inline at::Tensor run_hook(c10d::CommHookInterface& hook, c10d::GradBucket bucket) {
  const auto future = hook.runHook(bucket);
  future->waitAndThrow();
  return hook.parseHookResult(future->value()).clone();
}

/// Fails the test unless `tensor` has the same bits on all ranks. Collective.
inline void expect_same_bits(const Group& group, const at::Tensor& tensor) {
  const at::Tensor bytes = tensor.contiguous().view(at::kByte);
  const at::Tensor all = at::empty({group->getSize() * bytes.numel()}, bytes.options());
  all_gather(all, bytes.view({-1}), {group});
  for (const at::Tensor& theirs : all.tensor_split(group->getSize())) {
    EXPECT_TRUE(at::equal(theirs, bytes.view({-1})));
  }
}

}  // namespace farandole::test
