// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

#include "farandole/error.h"
#include "farandole/export.h"

namespace farandole::comm {

/// A wait for other ranks that the user has ended with Ctrl-C. In Python it is a KeyboardInterrupt.
/// The group has been aborted: peers get an AbortedError, and so do later calls on this rank.
class FARANDOLE_API Interrupted : public AbortedError {
 public:
  using AbortedError::AbortedError;
  ~Interrupted() override;
};

/// Whether the calling thread, which waits for other ranks, is to give up. It is asked about every
/// 50 ms of a wait, on any thread, and must return at once.
using InterruptCheck = bool (*)();

/// For languages and programs that handle SIGINT, so that it does not end the process by itself.
/// The Python bindings set it. Any thread; nullptr: no wait is ended.
FARANDOLE_API void set_interrupt_check(InterruptCheck check) noexcept;

/// What the check says. False without one.
FARANDOLE_API bool is_interrupted();

/// What a wait that gives up tells its peers: "<subject> was interrupted by Ctrl-C (SIGINT)."
FARANDOLE_API std::string interrupted_text(const std::string& subject);
/// What later calls in the group throw on this rank.
FARANDOLE_API AbortedError group_interrupted_error(const std::string& subject, Fault fault = {});
/// What later calls in `group` throw on this rank if a call has thrown `failure`: an interrupt
/// comes once.
FARANDOLE_API std::exception_ptr failure_of_later_calls(const std::exception_ptr& failure,
                                                        const std::string& group);
/// What the wait throws. `fault`: the ranks that it has waited for.
FARANDOLE_API Interrupted interrupted_error(const std::string& subject, Fault fault = {});
/// For the waits of a group that forms. Throws Interrupted if this rank is to give up.
FARANDOLE_API void check_forming_not_interrupted(const std::string& group);

}  // namespace farandole::comm
