// SPDX-License-Identifier: Apache-2.0
#include "comm/lost_rank.h"

namespace farandole::comm {
namespace {

/// Empty: no function.
std::string& called() {
  thread_local std::string name;
  return name;
}

}  // namespace

CalledFunction::CalledFunction(const std::string& name) : is_outermost_(called().empty()) {
  if (is_outermost_) called() = name;
}

CalledFunction::~CalledFunction() {
  if (is_outermost_) called().clear();
}

std::string missing_call(const std::string& operation) {
  if (!called().empty()) return called();
  return operation.empty() ? "the next collective" : operation + "()";
}

std::string fix_of_absence(const std::string& operation) {
  return "call " + missing_call(operation) +
         " on every rank, and destroy the group after the last collective; if that rank met an "
         "error, its own output shows it.";
}

PeerFailure left_while_forming(const std::string& group, const Topology& topology, int rank) {
  return PeerFailure(
      "peer-ended",
      "group '" + group + "' cannot continue: " + topology.describe(rank) + " left the group.",
      topology.name_of(rank) + " left the group without calling " + missing_call("new_group") + ".",
      fix_of_absence("new_group"), topology.fault_of({rank}));
}

}  // namespace farandole::comm
