// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <tuple>
#include <vector>

#include "process_group/group_ranks.h"
#include "support/ranks.h"

namespace farandole::test {

/// A backend that Farandole does not know: it lends its collectives from one that it does, and
/// counts what reduces and exchanges gradients.
class ForeignBackend : public c10d::Backend {
 public:
  explicit ForeignBackend(GroupPointer lender)
      : Backend(lender->getRank(), lender->getSize()), lender_(std::move(lender)) {}
  const std::string getBackendName() const override { return "foreign"; }

  using Work = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  Work broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    return lender_->broadcast(tensors, options);
  }
  /// What this rank has passed to those since it was asked last, in bytes.
  int64_t gradient_bytes() { return gradient_bytes_.exchange(0); }
  /// The same of what is gathered.
  int64_t gathered_bytes() { return gathered_bytes_.exchange(0); }

  Work allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    for (const at::Tensor& tensor : tensors) count(tensor);
    return lender_->allreduce(tensors, options);
  }
  Work _allgather_base(at::Tensor& output, at::Tensor& input,
                       const c10d::AllgatherOptions& options) override {
    gathered_bytes_ += static_cast<int64_t>(input.nbytes());
    return lender_->_allgather_base(output, input, options);
  }
  Work _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                            const c10d::ReduceScatterOptions& options) override {
    count(input);
    return lender_->_reduce_scatter_base(output, input, options);
  }
  Work alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                     std::vector<int64_t>& input_splits,
                     const c10d::AllToAllOptions& options) override {
    count(input);
    return lender_->alltoall_base(output, input, output_splits, input_splits, options);
  }
  Work gather(std::vector<Tensors>& outputs, Tensors& inputs,
              const c10d::GatherOptions& options) override {
    return lender_->gather(outputs, inputs, options);
  }

 private:
  void count(const at::Tensor& tensor) {
    const bool counts = tensor.layout() == at::kStrided && tensor.is_floating_point();
    if (counts) gradient_bytes_ += static_cast<int64_t>(tensor.nbytes());
  }

  const GroupPointer lender_;
  std::atomic<int64_t> gradient_bytes_{0};  ///< autograd's thread counts too
  std::atomic<int64_t> gathered_bytes_{0};
};

/// The parameters of tests with replicas: backends, and numbers of ranks. "foreign" runs the same
/// code at every number of ranks, so it is tested on 2 ranks only, unless FARANDOLE_TEST_ALL is
/// set.
inline std::vector<std::tuple<std::string, int>> backends_on(
    std::initializer_list<int> rank_counts) {
  std::vector<std::tuple<std::string, int>> all;
  for (const int ranks : rank_counts) all.emplace_back("farandole", ranks);
  for (const int ranks : rank_counts) {
    if (ranks == 2 || whole_matrix()) all.emplace_back("foreign", ranks);
  }
  return all;
}

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
