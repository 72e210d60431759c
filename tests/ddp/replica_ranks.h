// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>

#include "process_group/group_ranks.h"

namespace farandole::test {

/// A backend that Farandole does not know: it lends its collectives from one that it does.
class ForeignBackend final : public c10d::Backend {
 public:
  explicit ForeignBackend(GroupPointer lender)
      : Backend(lender->getRank(), lender->getSize()), lender_(std::move(lender)) {}
  const std::string getBackendName() const override { return "foreign"; }

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return lender_->broadcast(tensors, options);
  }
  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    return lender_->allreduce(tensors, options);
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    return lender_->_allgather_base(output, input, options);
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override {
    return lender_->_reduce_scatter_base(output, input, options);
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override {
    return lender_->gather(outputs, inputs, options);
  }

 private:
  const GroupPointer lender_;
};

/// Runs `body` on ranks that are threads, each with a group of backend "farandole" or "foreign".
inline void run_replicas(const std::string& backend, int world_size,
                         const std::function<void(const Group&)>& body,
                         std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  run_group_pointers(
      world_size,
      [&](const GroupPointer& ours) {
        const bool foreign = backend == "foreign";
        body(foreign ? group_around(c10::make_intrusive<ForeignBackend>(ours))
                     : group_around(ours));
      },
      timeout);
}

}  // namespace farandole::test
