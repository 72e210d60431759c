// SPDX-License-Identifier: Apache-2.0
#include "optim/step/shard_stepper.h"

#include <c10/util/Exception.h>

#include <exception>

namespace farandole {

ShardStepper::~ShardStepper() = default;

std::string text_of_exception() {
  try {
    throw;
  } catch (const c10::Error& error) {
    return error.what_without_backtrace();
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace farandole
