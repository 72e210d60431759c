// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/process_group.h"

#include "comm/fork_guard.h"
#include "farandole/error.h"
#include "process_group/coalescing.h"
#include "process_group/device/accelerators.h"
#include "process_group/group_communicators.h"
#include "process_group/live_groups.h"
#include "process_group/reconfigure_handle.h"

namespace farandole {
namespace {

/// Whether the ranks are to come with the first reconfigure().
bool waits_for_ranks(const ProcessGroupFarandole::Options& options) {
#ifdef C10D_BACKEND_HAS_RECONFIGURE
  return options.enable_reconfigure;
#else
  static_cast<void>(options);
  return false;
#endif
}

}  // namespace

ProcessGroupFarandole::Options::Options(std::chrono::milliseconds group_timeout)
    : c10d::Backend::Options("farandole", group_timeout) {}
ProcessGroupFarandole::Options::~Options() = default;
#ifdef C10D_BACKEND_HAS_RECONFIGURE
c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupFarandole::Options::clone() const {
  return c10::make_intrusive<Options>(*this);
}
#endif

ProcessGroupFarandole::ProcessGroupFarandole(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                             int size, const c10::intrusive_ptr<Options>& options)
    : Backend(rank, size),
      options_(c10::make_intrusive<Options>(*options)),
      name_(options->group_name.empty() ? "default" : options->group_name),
      fork_guard_(std::make_unique<comm::ForkGuard>()),
      store_(store),
      hooks_(std::make_shared<GroupHooks>()),
      coalescing_(std::make_unique<Coalescing>()),
      error_(std::make_shared<std::atomic<c10d::ErrorType>>(c10d::ErrorType::SUCCESS))
#ifdef C10D_BACKEND_HAS_RECONFIGURE
      ,
      first_store_(store),
      generation_(options->enable_reconfigure ? ReconfigureHandle::kUnformed
                                              : ReconfigureHandle::kFirst),
      instance_(ReconfigureHandle::new_instance())
#endif
{
  options_->group_name = name_;
  if (!options_->while_forming) {
    options_->while_forming = watch_of_default_group(options_->global_ranks_in_group);
  }
  if (!waits_for_ranks(*options_)) {
    communicators_ = form(store, rank, size, kNoTimeout, options_->while_forming);
    topology_ = communicators_->host()->topology();
  }
  remember(*this);
}

ProcessGroupFarandole::~ProcessGroupFarandole() { ProcessGroupFarandole::release_resources(); }

void ProcessGroupFarandole::release_resources() {
  forget(*this);
  if (in_creator()) {
    shutdown();
  } else {
    // A forked child holds a copy that it must not touch: the rank lives in its parent.
    new std::shared_ptr<GroupCommunicators>(std::move(communicators_));
  }
}

c10::intrusive_ptr<ProcessGroupFarandole> ProcessGroupFarandole::of(c10d::ProcessGroup& group,
                                                                    c10::DeviceType type) {
  try {
    const c10::intrusive_ptr<Backend> backend = group.getBackend(type);
    auto* ours = dynamic_cast<ProcessGroupFarandole*>(backend.get());
    // The wrapper of torch's DETAIL mode passes the options on of what it wraps.
    if (ours == nullptr) ours = owner_of(backend->getBackendOptions().get());
    if (ours == nullptr) return {};
    return c10::intrusive_ptr<ProcessGroupFarandole>::unsafe_reclaim_from_nonowning(ours);
  } catch (const c10::Error&) {
    return {};  // it has no backend for such tensors, or one without options
  }
}

const std::string ProcessGroupFarandole::getBackendName() const { return "farandole"; }

c10::intrusive_ptr<c10d::Backend::Options> ProcessGroupFarandole::getBackendOptions() {
  return options_;
}

bool ProcessGroupFarandole::in_creator() const { return fork_guard_->in_creator(); }

std::shared_ptr<GroupCommunicators> ProcessGroupFarandole::form(
    const c10::intrusive_ptr<c10d::Store>& store, int rank, int size,
    std::chrono::milliseconds formation_timeout, comm::WhileForming while_forming) {
  return GroupCommunicators::form(
      store, rank, size,
      {name_, options_->timeout, formation_timeout, hooks_, error_, std::move(while_forming)});
}

/// Null without ranks.
std::shared_ptr<GroupCommunicators> ProcessGroupFarandole::present_communicators() const {
  if (!in_creator()) return communicators_;  // the mutex may have been held at the fork
  const std::lock_guard<std::mutex> lock(mutex_);
  return communicators_;
}

std::shared_ptr<GroupCommunicators> ProcessGroupFarandole::communicators() const {
  if (auto present = present_communicators()) return present;
  if (shut_down_) refuse_after_shutdown(name_);
  throw InvalidArgument("group-without-ranks",
                        "group '" + name_ + "' was used while it had no ranks.",
                        "it was made with enable_reconfigure=True, or reconfigure() has failed.",
                        "call reconfigure() on every rank first, with a new uuid.");
}

std::shared_ptr<comm::Communicator> ProcessGroupFarandole::communicator(
    c10::DeviceType type) const {
  const auto present = present_communicators();
  return present ? present->of(type) : nullptr;
}

ProcessGroupFarandole::Work ProcessGroupFarandole::launch(Call call, Body body) {
  Work work = communicators()->launch(std::move(call), std::move(body));
  if (C10_UNLIKELY(coalescing_->is_active())) coalescing_->add(work);
  return work;
}

bool ProcessGroupFarandole::supportsCoalescing() const { return has_accelerator(); }

void ProcessGroupFarandole::eagerConnectSingleDevice(at::Device device) {
  if (can_serve(device.type())) communicators()->connect(device);
}

void ProcessGroupFarandole::setSequenceNumberForGroup() {}

uint64_t ProcessGroupFarandole::getSequenceNumberForGroup() {
  const auto present = present_communicators();
  return present ? present->launched() : 0;
}

void ProcessGroupFarandole::setTimeout(std::chrono::milliseconds timeout) {
  if (timeout <= kNoTimeout) {
    throw InvalidArgument("timeout-too-short",
                          "the timeout of group '" + name() + "' cannot be " +
                              std::to_string(timeout.count()) + " ms.",
                          "a collective has to wait for the other ranks.",
                          "pass a timeout of at least 1 ms.");
  }
  options_->timeout = timeout;
  if (const auto present = present_communicators()) present->set_timeout(timeout);
  for (const auto& duplicate : live_duplicates()) duplicate->setTimeout(timeout);
}

c10d::ErrorType ProcessGroupFarandole::getError() { return error_->load(); }

void ProcessGroupFarandole::abort() {
  coalescing_->drop(name_);
  for (const auto& duplicate : live_duplicates()) duplicate->abort();
  if (const auto present = present_communicators()) present->abort("abort() was called");
}

/// Ends what the group has of its present ranks; what is pending fails for `reason`.
void ProcessGroupFarandole::end_membership(const std::string& reason) {
  if (const auto present = present_communicators()) present->end(reason);
  std::shared_ptr<GroupCommunicators> ended;  // not let go under the lock
  const std::lock_guard<std::mutex> lock(mutex_);
  ended = std::move(communicators_);
}

void ProcessGroupFarandole::shutdown() {
  if (!in_creator()) return;
  shut_down_ = true;
  for (const auto& duplicate : live_duplicates()) duplicate->shutdown();
  end_membership("the group was shut down with operations pending");
}

}  // namespace farandole
