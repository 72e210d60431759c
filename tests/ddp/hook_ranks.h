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
  explicit SummingBackend(c10::intrusive_ptr<ProcessGroupFarandole> inner)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)) {}
  const std::string getBackendName() const override { return "summing"; }

  Work allreduce(std::vector<at::Tensor>& tensors, const c10d::AllreduceOptions& opts) override {
    EXPECT_EQ(opts.reduceOp, c10d::ReduceOp::SUM);
    return inner_->allreduce(tensors, opts);
  }

 private:
  const c10::intrusive_ptr<ProcessGroupFarandole> inner_;
};

inline c10::intrusive_ptr<c10d::Backend> make_backend(const std::string& name,
                                                      const c10::intrusive_ptr<c10d::Store>& store,
                                                      int rank, int world_size) {
  auto ours = c10::make_intrusive<ProcessGroupFarandole>(
      store, rank, world_size,
      c10::make_intrusive<ProcessGroupFarandole::Options>(std::chrono::seconds(30)));
  if (name == "farandole") return ours;
  return c10::make_intrusive<SummingBackend>(std::move(ours));
}

/// Runs `body` on ranks that are threads, each with a group of `backend`, "farandole" or "summing".
/// Rethrows the first error of the lowest rank.
inline void run_hook_ranks(const std::string& backend, int world_size,
                           const std::function<void(const Group&)>& body) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  constexpr auto type = c10d::ProcessGroup::BackendType::CUSTOM;
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < world_size; ++rank) {
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      const auto group = c10::make_intrusive<c10d::ProcessGroup>(rank, world_size);
      group->setDefaultBackend(type);
      group->setBackend(c10::DeviceType::CPU, type, make_backend(backend, store, rank, world_size));
      body(group);
    }));
  }
  const auto deadline = std::chrono::steady_clock::now() + rank_deadline();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].wait_until(deadline) == std::future_status::ready) continue;
    fprintf(stderr, "rank %zu of %d was not done at the deadline\n", rank, world_size);
    std::_Exit(1);
  }
  for (auto& rank : ranks) rank.get();
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
