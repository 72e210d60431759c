// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/checkpoint_on_signal.h"

#include <ATen/ops/full.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <utility>

#include "checkpoint/training/last_checkpoint.h"
#include "farandole/error.h"
#include "farandole/process_group/collectives.h"
#include "log.h"
#include "process_group/message_device.h"

namespace farandole {
namespace {

/// How often a signal has come. Handlers count, so it must be free of locks.
std::array<std::atomic<unsigned>, NSIG> g_counts{};
static_assert(std::atomic<unsigned>::is_always_lock_free);

/// What was there before a handler, written while it is not.
std::array<struct sigaction, NSIG> g_before{};
/// Under g_mutex: objects that want a signal, and whether another library's handler, which calls
/// ours, was above ours when the last of them ended: ours above it again would never end.
std::array<int, NSIG> g_holders{};
std::array<bool, NSIG> g_is_below{};
std::mutex g_mutex;

bool is_a_handler(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 ||
         (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN);
}

void count(int number, siginfo_t* info, void* context) {
  const int met = errno;
  const auto index = static_cast<size_t>(number);
  g_counts[index].fetch_add(1, std::memory_order_relaxed);
  const struct sigaction& before = g_before[index];
  if ((before.sa_flags & SA_SIGINFO) != 0) {
    before.sa_sigaction(number, info, context);
  } else if (is_a_handler(before)) {
    before.sa_handler(number);
  }
  errno = met;
}

bool is_ours(const struct sigaction& action) {
  return (action.sa_flags & SA_SIGINFO) != 0 && action.sa_sigaction == &count;
}

/// Puts ours there, unless it is already. False, with errno, if that cannot be.
bool put_handler(int number) {
  const auto index = static_cast<size_t>(number);
  struct sigaction present = {};
  if (::sigaction(number, nullptr, &present) != 0) return false;
  const bool is_there = is_ours(present) || (g_is_below[index] && is_a_handler(present));
  if (is_there) return true;
  g_before[index] = present;
  struct sigaction own = {};
  own.sa_sigaction = &count;
  own.sa_flags = SA_SIGINFO | SA_RESTART;
  return ::sigaction(number, &own, nullptr) == 0;
}

/// Returns how often it has come by now.
unsigned hold(int number) {
  const std::unique_lock<std::mutex> guard(g_mutex);
  const bool is_known = number > 0 && number < NSIG;
  if (!is_known || !put_handler(number)) {
    const int met = is_known ? errno : EINVAL;
    throw InvalidArgument("checkpoint-signal",
                          "CheckpointOnSignal got the signal " + std::to_string(number) + ".",
                          "it cannot be handled: " + std::generic_category().message(met) + ".",
                          "pass signals that programs may handle, such as SIGTERM and SIGUSR1.");
  }
  const auto index = static_cast<size_t>(number);
  ++g_holders[index];
  return g_counts[index].load(std::memory_order_relaxed);
}

void let_go(int number) {
  const std::unique_lock<std::mutex> guard(g_mutex);
  const auto index = static_cast<size_t>(number);
  if (--g_holders[index] > 0) return;
  struct sigaction present = {};
  ::sigaction(number, nullptr, &present);
  g_is_below[index] = !is_ours(present) && is_a_handler(present);
  if (is_ours(present)) ::sigaction(number, &g_before[index], nullptr);
}

}  // namespace

CheckpointOnSignal::CheckpointOnSignal(CheckpointOnSignalOptions options)
    : file_(std::move(options.file)), group_(options.group ? options.group : default_group()) {
  try {
    for (const int number : options.signals) {
      if (seen_.count(number) == 0) seen_[number] = hold(number);
    }
  } catch (...) {
    for (const auto& [number, seen] : seen_) let_go(number);
    throw;
  }
}

CheckpointOnSignal::~CheckpointOnSignal() {
  for (const auto& [number, seen] : seen_) let_go(number);
}

bool CheckpointOnSignal::requested() const {
  std::error_code ignored;
  bool own = !file_.empty() && std::filesystem::exists(file_, ignored);
  for (const auto& [number, seen] : seen_) {
    own |= g_counts[static_cast<size_t>(number)].load(std::memory_order_relaxed) != seen;
  }
  const at::Tensor asked = at::full({1}, own ? 1.0 : 0.0, message_device(*group_));
  all_reduce(asked, {c10d::ReduceOp::MAX, group_});
  if (asked.item<float>() <= 0) return false;
  if (!std::exchange(was_told_, true) && group_->getRank() == 0) {
    log(LogLevel::kInfo, "a rank was asked to save and end: requested() is true on all ranks.");
  }
  return true;
}

int CheckpointOnSignal::end() const {
  if (group_->getRank() != 0) return kStatus;
  try {
    const auto last = checkpoint::last_checkpoint();
    const std::string saved =
        last ? "the last checkpoint is '" + last->wait() + "'" : "nothing was saved";
    log(LogLevel::kInfo, "CheckpointOnSignal ends the ranks with status " +
                             std::to_string(kStatus) + "; " + saved + ".");
  } catch (const std::exception& met) {
    log(LogLevel::kError, met.what());
  }
  return kStatus;
}

}  // namespace farandole
