// SPDX-License-Identifier: Apache-2.0
#include "process_group/coalescing.h"

#include <utility>

#include "farandole/error.h"
#include "farandole/process_group/process_group.h"
#include "log.h"
#include "process_group/coalesced_work.h"
#include "process_group/group_communicators.h"

namespace farandole {

void Coalescing::start(const std::string& group) {
  if (active_) drop(group);
  active_ = true;
}

void Coalescing::drop(const std::string& group) {
  Calls dropped;
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!active_.exchange(false)) return;
  dropped = std::exchange(calls_, {});
  if (dropped.transfers.empty()) return;
  log(LogLevel::kWarning, "group '" + group + "': " + std::to_string(dropped.transfers.size()) +
                              " sends and receives of a batch were dropped, as an error has left "
                              "it before its end.");
}

void Coalescing::add(Work work) {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.works.push_back(std::move(work));
}

void Coalescing::add(DeviceTransfer transfer) {
  const std::lock_guard<std::mutex> lock(mutex_);
  calls_.transfers.push_back(std::move(transfer));
}

Coalescing::Calls Coalescing::end(const std::string& group) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!active_.exchange(false)) {
    throw InvalidArgument(
        "coalescing-without-start",
        "endCoalescing() was called in group '" + group + "' without startCoalescing().",
        "there are no calls to end.", "call startCoalescing() first.");
  }
  return std::exchange(calls_, {});
}

void ProcessGroupFarandole::startCoalescing() { coalescing_->start(name_); }

ProcessGroupFarandole::Work ProcessGroupFarandole::endCoalescing() {
  static constexpr Operation kOperation{c10d::OpType::COALESCED, "coalesced",
                                        "farandole:coalesced"};
  Coalescing::Calls calls = coalescing_->end(name_);
  if (!calls.transfers.empty())
    calls.works.push_back(launch_transfers(kOperation, calls.transfers));
  if (calls.works.size() == 1) return calls.works.front();
  if (calls.works.empty()) return communicators()->finished(kOperation, {});
  return c10::make_intrusive<CoalescedWork>(rank_, std::move(calls.works));
}

}  // namespace farandole
