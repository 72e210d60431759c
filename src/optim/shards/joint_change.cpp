// SPDX-License-Identifier: Apache-2.0
#include "optim/shards/joint_change.h"

#include <algorithm>
#include <exception>
#include <vector>

#include "farandole/error.h"
#include "optim/step/shard_stepper.h"

namespace farandole {

void change_together(const ReplicaGroup& group, const std::string& call,
                     const std::function<void()>& change, const std::function<void()>& undo) {
  std::exception_ptr own;
  std::string error;
  try {
    change();
  } catch (const CommError&) {  // the other ranks have it too, and do not wait here
    undo();
    throw;
  } catch (...) {
    own = std::current_exception();
    error = text_of_exception();
    error = error.substr(0, error.find("\n\nAt:\n"));  // where pybind11 appends a traceback
    if (error.empty()) error = "an exception without a text";
  }
  std::vector<std::string> errors;
  try {
    errors = group.all_gather(error);
  } catch (const std::exception&) {  // peers were in a collective of `change`
    undo();
    if (own) std::rethrow_exception(own);
    throw;
  }
  const auto failed = std::find_if(errors.begin(), errors.end(),
                                   [](const std::string& each) { return !each.empty(); });
  if (failed == errors.end()) return;
  undo();
  if (own) std::rethrow_exception(own);
  throw StepError(
      "change-failed",
      call + " failed on rank " + std::to_string(failed - errors.begin()) + " of group '" +
          group.name() + "'.",
      "it met: " + *failed,
      "fix the cause on that rank and call it again on every rank; nothing was changed.",
      {{static_cast<int>(failed - errors.begin())}, ""});
}

}  // namespace farandole
