// SPDX-License-Identifier: Apache-2.0
#include "process_group/coalesced_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>

namespace farandole {
namespace {

using c10::ivalue::Future;

/// A future that ends with the last of several.
struct JoinedFutures {
  std::vector<c10::intrusive_ptr<Future>> parts;
  c10::intrusive_ptr<Future> whole;
  std::atomic<size_t> left{0};

  /// All parts are done.
  void finish() const {
    std::vector<at::Tensor> all;
    for (const auto& part : parts) {
      if (part->hasError()) return whole->setError(part->exception_ptr());
      part->wait();  // the current streams, on which `whole` records its events
      const std::vector<at::Tensor> some = part->value().toTensorVector();
      all.insert(all.end(), some.begin(), some.end());
    }
    whole->markCompleted(c10::IValue(all));
  }
};

}  // namespace

CoalescedWork::CoalescedWork(int rank, std::vector<c10::intrusive_ptr<c10d::Work>> works)
    : Work(rank, c10d::OpType::COALESCED), works_(std::move(works)) {}

bool CoalescedWork::isCompleted() {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isCompleted(); });
}

bool CoalescedWork::isSuccess() const {
  return std::all_of(works_.begin(), works_.end(),
                     [](const auto& work) { return work->isSuccess(); });
}

std::exception_ptr CoalescedWork::exception() const {
  for (const auto& work : works_) {
    if (const std::exception_ptr failure = work->exception()) return failure;
  }
  return nullptr;
}

bool CoalescedWork::wait(std::chrono::milliseconds timeout) {
  for (const auto& work : works_) work->wait(timeout);
  return true;
}

void CoalescedWork::synchronize() {
  for (const auto& work : works_) work->synchronize();
}

std::vector<at::Tensor> CoalescedWork::result() {
  std::vector<at::Tensor> all;
  for (const auto& work : works_) {
    const std::vector<at::Tensor> some = work->result();
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

void CoalescedWork::abort() {
  for (const auto& work : works_) work->abort();
}

c10::intrusive_ptr<Future> CoalescedWork::getFuture() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_) return future_;
  const auto joined = std::make_shared<JoinedFutures>();
  std::vector<c10::Device> devices;
  for (const auto& work : works_) {
    joined->parts.push_back(work->getFuture());
    for (const c10::Device& each : joined->parts.back()->devices()) {
      if (std::find(devices.begin(), devices.end(), each) == devices.end()) {
        devices.push_back(each);
      }
    }
  }
  joined->left = joined->parts.size();
  joined->whole = c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()),
                                              std::move(devices));
  future_ = joined->whole;
  for (const auto& part : joined->parts) {
    part->addCallback([joined](Future&) {
      if (--joined->left == 0) joined->finish();
    });
  }
  return future_;
}

}  // namespace farandole
