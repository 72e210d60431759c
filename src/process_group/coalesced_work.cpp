// SPDX-License-Identifier: Apache-2.0
#include "process_group/coalesced_work.h"

#include <algorithm>
#include <utility>

namespace farandole {

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

}  // namespace farandole
