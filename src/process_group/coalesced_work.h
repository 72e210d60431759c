// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <mutex>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

namespace farandole {

/// Several Works as one, done when all of them are. Threads: any. Streams: as those of the Works.
class CoalescedWork final : public c10d::Work {
 public:
  CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works);

  bool isCompleted() override;
  bool isSuccess() const override;
  /// The first one.
  std::exception_ptr exception() const override;
  /// `timeout` is for each of them.
  bool wait(std::chrono::milliseconds timeout = kNoTimeout) override;
  void synchronize() override;
  std::vector<at::Tensor> result() override;
  void abort() override;
  /// Holds the tensors of result() once all of them are done, or the first error. Always the same
  /// one.
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override;

 private:
  const std::vector<c10::intrusive_ptr<c10d::Work>> works_;
  std::mutex future_mutex_;
  c10::intrusive_ptr<c10::ivalue::Future> future_;  // guarded by future_mutex_
};

}  // namespace farandole
