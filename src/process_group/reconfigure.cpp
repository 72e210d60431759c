// SPDX-License-Identifier: Apache-2.0
// How a ProcessGroupFarandole gets other ranks.
#include <algorithm>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <variant>

#include "farandole/error.h"
#include "process_group/process_group_private.h"
#include "process_group/reconfigure_handle.h"
#include "process_group/store_adapter.h"

#ifdef C10D_BACKEND_HAS_RECONFIGURE

namespace farandole {
namespace {

std::vector<std::string> ordered_handles(const c10d::ReconfigureOptions& opts) {
  std::vector<std::string> handles;
  const auto take = [&](const auto& given) { handles.assign(given.begin(), given.end()); };
  std::visit(take, opts.handles);
  check_handles(handles);
  return opts.handles.index() == 0 ? in_rank_order(handles) : handles;
}

}  // namespace

c10d::ReconfigureHandle ProcessGroupFarandole::get_reconfigure_handle() const {
  return ReconfigureHandle{rank_, generation_, instance_}.text();
}

/// Each uuid has a part of the store of its own, in which each new rank counts itself in: what an
/// earlier use of the uuid has left there would be taken for the present.
ProcessGroupFarandole::Work ProcessGroupFarandole::reconfigure(
    const c10d::ReconfigureOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::UNKNOWN, "reconfigure",
                                        "farandole:reconfigure"};
  const Caller by = caller(kOperation);
  if (shut_down_) refuse_after_shutdown(name_);
  check_no_hints(by, opts.hints);
  const std::vector<std::string> handles = ordered_handles(opts);
  const auto own = std::find(handles.begin(), handles.end(), get_reconfigure_handle());
  if (own == handles.end()) {
    throw InvalidArgument(
        "own-handle-missing", by.describe() + " got no handle of this rank.",
        "only ranks of the new group may call it, and each reconfigure() changes the handle.",
        "collect get_reconfigure_handle() again from all ranks, including this one.");
  }
  const int rank = static_cast<int>(own - handles.begin());
  const std::string uuid = std::to_string(opts.uuid);
  const auto store =
      c10::make_intrusive<c10d::PrefixStore>("reconfigure_" + uuid + "/", first_store_);
  if (count_up(*store, "claims_of_rank_" + std::to_string(rank)) != 1) {
    throw InvalidArgument("uuid-reused",
                          by.describe() + " got the uuid " + uuid + " a second time.",
                          "keys of its first use are still in the store.",
                          "pass a uuid that no reconfigure() of this group has used.");
  }
  for (const auto& duplicate : live_duplicates()) duplicate->abort();
  end_membership("the group was reconfigured with operations pending");
  error_->store(c10d::ErrorType::SUCCESS);
  options_->is_default = false;  // its ranks are others now
  auto formed = form(store, rank, static_cast<int>(handles.size()),
                     std::max(opts.timeout.value_or(kNoTimeout), kNoTimeout), {});
  rank_ = rank;
  size_ = static_cast<int>(handles.size());
  generation_ = uuid;
  store_ = store;
  topology_ = formed->host()->topology();
  auto work = formed->finished(kOperation, {});
  const std::lock_guard<std::mutex> lock(mutex_);
  communicators_ = std::move(formed);
  duplicates_.clear();
  made_duplicates_ = 0;
  return work;
}

}  // namespace farandole

#endif
