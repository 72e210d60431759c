// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <stdexcept>
#include <string>

namespace farandole::sim::nccl {

/// A call failed with `result`.
struct Failure : std::runtime_error {
  Failure(ncclResult_t code, const std::string& text) : std::runtime_error(text), result(code) {}

  ncclResult_t result;
};

/// A call that NCCL forbids, where NCCL itself may hang, crash or mix data up. It is reported.
struct Misuse : Failure {
  using Failure::Failure;
};

/// Keeps the text of a misuse for the test, once. Any thread.
void report(const std::string& text);
/// The texts since the last call, each followed by a line feed. Any thread.
std::string take_reports();

}  // namespace farandole::sim::nccl
