// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/interrupt.h"

#include <atomic>
#include <utility>

namespace farandole::comm {
namespace {

std::atomic<InterruptCheck> interrupt_check{nullptr};

}  // namespace

Interrupted::~Interrupted() = default;

void set_interrupt_check(InterruptCheck check) noexcept {
  interrupt_check.store(check, std::memory_order_release);
}

bool is_interrupted() {
  const InterruptCheck check = interrupt_check.load(std::memory_order_acquire);
  return check != nullptr && check();
}

std::string interrupted_text(const std::string& subject) {
  return subject + " was interrupted by Ctrl-C (SIGINT).";
}

AbortedError group_interrupted_error(const std::string& subject, Fault fault) {
  return {"aborted", interrupted_text(subject), "a group does not continue after such a wait.",
          "destroy this group and make a new one to continue.", std::move(fault)};
}

std::exception_ptr failure_of_later_calls(const std::exception_ptr& failure,
                                          const std::string& group) {
  try {
    std::rethrow_exception(failure);
  } catch (const Interrupted& error) {
    return std::make_exception_ptr(group_interrupted_error(
        "an earlier collective in group '" + group + "'", {error.ranks(), error.collective()}));
  } catch (...) {
    return failure;
  }
}

Interrupted interrupted_error(const std::string& subject, Fault fault) {
  return {"interrupted", interrupted_text(subject), "it was waiting for other ranks.",
          "destroy this group and make a new one to continue.", std::move(fault)};
}

void check_forming_not_interrupted(const std::string& group) {
  if (is_interrupted()) throw interrupted_error("the formation of group '" + group + "'");
}

}  // namespace farandole::comm
