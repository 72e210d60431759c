// SPDX-License-Identifier: Apache-2.0
#include "ddp/round_note.h"

#include <cstring>

namespace farandole {
namespace {

/// What stands before the gradients in a packed note.
struct Head {
  uint32_t flags;
  double weight;
  uint64_t forward;
  uint64_t begin_ns;
  uint64_t end_ns;
  int64_t nonfinite;
  uint64_t plan;
};

}  // namespace

size_t RoundNote::bytes(size_t parameters) { return sizeof(Head) + parameters; }

Note RoundNote::pack() const {
  const Head head{flags, weight, forward, begin_ns, end_ns, nonfinite, plan};
  Note note(bytes(gradients.size()));
  std::memcpy(note.data(), &head, sizeof(head));
  if (!gradients.empty()) {
    std::memcpy(note.data() + sizeof(head), gradients.data(), gradients.size());
  }
  return note;
}

RoundNote RoundNote::unpack(const std::byte* note, size_t parameters) {
  Head head;
  std::memcpy(&head, note, sizeof(head));
  RoundNote result{head.flags,  head.weight,    head.forward, head.begin_ns,
                   head.end_ns, head.nonfinite, head.plan};
  result.gradients.resize(parameters);
  if (parameters != 0) std::memcpy(result.gradients.data(), note + sizeof(head), parameters);
  return result;
}

}  // namespace farandole
