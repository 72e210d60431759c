// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_failure.h"

#include "farandole/error.h"

namespace farandole {

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

bool is_own_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error&) {
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

std::exception_ptr as_own_error(const std::exception_ptr& failure, const std::string& who) {
  if (is_own_error(failure)) return failure;
  return std::make_exception_ptr(SystemError(
      "device-failed", who + " cannot go on: its device has failed.", text_of(failure),
      "look for the first error of the device on this rank; operations that read or write "
      "outside of their memory are the usual reason."));
}

}  // namespace farandole
