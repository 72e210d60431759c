// SPDX-License-Identifier: Apache-2.0
// Groups that a ProcessGroupFarandole makes from itself: split, shrink, merge, duplicate.
#include <algorithm>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include "farandole/error.h"
#include "farandole/process_group/process_group.h"
#include "process_group/group_communicators.h"

namespace farandole {
namespace {

using Options = ProcessGroupFarandole::Options;
using BasePointer = c10::intrusive_ptr<c10d::Backend::Options>;

/// "2_5_7"
template <class Ranks>
std::string joined(const Ranks& ranks) {
  std::string text;
  for (const auto rank : ranks) {
    if (!text.empty()) text += '_';
    text += std::to_string(rank);
  }
  return text;
}

/// Ours, with what the caller's say.
c10::intrusive_ptr<Options> options_of(const BasePointer& asked, const Options& parent,
                                       const std::string& name) {
  auto options = c10::make_intrusive<Options>(asked ? asked->timeout : parent.timeout);
  options->group_name = asked && !asked->group_name.empty() ? asked->group_name : name;
  return options;
}

void check_excluded(const std::vector<int64_t>& excluded, const std::string& group, int rank,
                    int size) {
  std::vector<int64_t> sorted = excluded;
  std::sort(sorted.begin(), sorted.end());
  const bool twice = std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end();
  const bool own = std::binary_search(sorted.begin(), sorted.end(), rank);
  if (!sorted.empty() && !twice && !own && sorted.front() >= 0 && sorted.back() < size) return;
  throw InvalidArgument(
      "shrink-ranks",
      "shrink of group '" + group + "' on rank " + std::to_string(rank) +
          " got an invalid list of ranks to exclude.",
      own ? "this rank is in the list, but only the ranks that remain may call it."
          : "there must be at least one, none twice, and each must be one of 0 to " +
                std::to_string(size - 1) + ".",
      "pass the ranks of this group that have failed, as the same list on every remaining rank.");
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> ProcessGroupFarandole::split(
    const c10::intrusive_ptr<c10d::Store>& store, const std::vector<int>& ranks,
    const BasePointer& opts) {
  const auto own = std::find(ranks.begin(), ranks.end(), rank_);
  if (own == ranks.end()) return {};
  const std::string suffix = joined(ranks);
  return c10::make_intrusive<ProcessGroupFarandole>(
      c10::make_intrusive<c10d::PrefixStore>("split_" + suffix, store),
      static_cast<int>(own - ranks.begin()), static_cast<int>(ranks.size()),
      options_of(opts, *options_, name() + "/split_" + suffix));
}

c10::intrusive_ptr<c10d::Backend> ProcessGroupFarandole::merge(
    const c10::intrusive_ptr<c10d::Store>& store, const BasePointer& opts, const int& rank,
    const int& size) {
  return c10::make_intrusive<ProcessGroupFarandole>(
      store, rank, size, options_of(opts, *options_, name() + "/merged"));
}

/// The ranks meet in the store of this group, which must live: a TCPStore dies with the process
/// that serves it, a FileStore and the store of torchrun's agent do not.
c10::intrusive_ptr<c10d::Backend> ProcessGroupFarandole::shrink(
    const std::vector<int64_t>& ranks_to_exclude, int shrink_flags, const BasePointer& opts) {
  constexpr int kAbort = 1;  // torch.distributed's SHRINK_ABORT
  check_excluded(ranks_to_exclude, name(), rank_, size_);
  if ((shrink_flags & kAbort) != 0) abort();
  std::vector<int> remaining;
  for (int rank = 0; rank < size_; ++rank) {
    const auto end = ranks_to_exclude.end();
    if (std::find(ranks_to_exclude.begin(), end, rank) == end) remaining.push_back(rank);
  }
  const auto own = std::find(remaining.begin(), remaining.end(), rank_);
  const std::string suffix = joined(remaining);
  return c10::make_intrusive<ProcessGroupFarandole>(
      c10::make_intrusive<c10d::PrefixStore>("shrunk_" + suffix, store_),
      static_cast<int>(own - remaining.begin()), static_cast<int>(remaining.size()),
      options_of(opts, *options_, name() + "/shrunk"));
}

c10::intrusive_ptr<ProcessGroupFarandole> ProcessGroupFarandole::duplicate(
    const std::string& purpose) {
  return make_duplicate(purpose, "all", rank_, size_);
}

c10::intrusive_ptr<ProcessGroupFarandole> ProcessGroupFarandole::duplicate_on_host(
    const std::string& purpose) {
  const auto& hosts = topology_.host_of_rank;
  const int host = hosts[static_cast<size_t>(rank_)];
  const auto own = hosts.begin() + rank_;
  return make_duplicate(purpose, "host" + std::to_string(host),
                        static_cast<int>(std::count(hosts.begin(), own, host)),
                        static_cast<int>(std::count(hosts.begin(), hosts.end(), host)));
}

/// Ranks that pass the same `place` meet.
c10::intrusive_ptr<ProcessGroupFarandole> ProcessGroupFarandole::make_duplicate(
    const std::string& purpose, const std::string& place, int rank, int size) {
  auto options = options_of({}, *options_, name() + "/" + purpose);
  options->while_forming = [own = std::weak_ptr(communicators()->host()),
                            are_all = size == size_](const comm::IsAbsent& is_absent) {
    if (const auto communicator = own.lock()) {
      communicator->check_alive();
      if (are_all) communicator->check_joins(is_absent);
    }
  };
  int number = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    number = made_duplicates_++;
  }
  try {
    auto made = c10::make_intrusive<ProcessGroupFarandole>(
        c10::make_intrusive<c10d::PrefixStore>("duplicate_" + std::to_string(number) + "_" + place,
                                               store_),
        rank, size, options);
    const std::lock_guard<std::mutex> lock(mutex_);
    duplicates_.erase(std::remove_if(duplicates_.begin(), duplicates_.end(),
                                     [](const auto& each) { return each.expired(); }),
                      duplicates_.end());
    duplicates_.emplace_back(c10::static_intrusive_pointer_cast<c10d::Backend>(made));
    return made;
  } catch (...) {
    // So that the next try meets ranks whose first one it is.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (made_duplicates_ == number + 1) made_duplicates_ = number;
    throw;
  }
}

std::vector<c10::intrusive_ptr<c10d::Backend>> ProcessGroupFarandole::live_duplicates() {
  std::vector<c10::intrusive_ptr<c10d::Backend>> live;
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& duplicate : duplicates_) {
    if (auto alive = duplicate.lock()) live.push_back(std::move(alive));
  }
  return live;
}

}  // namespace farandole
