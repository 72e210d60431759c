// SPDX-License-Identifier: Apache-2.0
#include "ddp/backward_report.h"

#include <cstring>

#include "ddp/rank_reports.h"

namespace farandole {
namespace {

/// What stands before the gradients in a packed report.
struct Head {
  uint32_t flags;
  double weight;
  uint64_t forward;
  uint64_t begin_ns;
  uint64_t end_ns;
  int64_t nonfinite;
  comm::Fingerprint plan;
};

}  // namespace

size_t BackwardReport::bytes(size_t parameters) { return sizeof(Head) + parameters; }

RankReport BackwardReport::pack() const {
  const Head head{flags, weight, forward, begin_ns, end_ns, nonfinite, plan};
  RankReport report(bytes(gradients.size()));
  std::memcpy(report.data(), &head, sizeof(head));
  if (!gradients.empty()) {
    std::memcpy(report.data() + sizeof(head), gradients.data(), gradients.size());
  }
  return report;
}

BackwardReport BackwardReport::unpack(const std::byte* report, size_t parameters) {
  const auto head = head_of_report<Head>(report);
  BackwardReport result{head.flags,  head.weight,    head.forward, head.begin_ns,
                        head.end_ns, head.nonfinite, head.plan};
  result.gradients.resize(parameters);
  if (parameters != 0) std::memcpy(result.gradients.data(), report + sizeof(head), parameters);
  return result;
}

}  // namespace farandole
