// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "support/simulated_device/stream.h"
#include "support/simulated_nccl/injection.h"

namespace farandole::sim::nccl {

enum class Function : int32_t {
  kAllReduce,
  kReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kSend,
  kReceive,
};
const char* name_of(Function function);
bool is_point_to_point(Function function);

/// What ranks must agree on. A send agrees with a receive.
struct Signature {
  Function function;
  ncclDataType_t dtype;
  int32_t op;    ///< ncclRedOp_t; -1 without a reduction
  int32_t root;  ///< -1 without one
  uint64_t count;
  uint64_t call;  ///< which operation of its rank's communicator, from 1; may differ
};
bool agree(const Signature& a, const Signature& b);
/// "ncclAllReduce of 4 float32 with ncclSum, its call 3".
std::string describe(const Signature& signature);

/// A reduction operator's factor: a value of the operation's type, on the device or here.
struct Factor {
  const void* on_device = nullptr;  ///< read by the kernel; null: `value` is used
  char value[8] = {};
};

/// One communication call, of which a kernel does one or more. Addresses are those of the device.
struct Operation {
  Signature signature;
  const char* send = nullptr;
  char* receive = nullptr;
  int peer = -1;  ///< of a send or receive
  Stream* stream = nullptr;
  std::optional<Factor> factor;
  std::optional<Injection> injection;
};

/// Who does an operation.
struct Member {
  int rank;
  int world_size;
};

/// What the operation reads and writes on this rank.
std::vector<Access> accesses_of(const Operation& operation, Member member);
/// Throws Misuse if input and output overlap other than NCCL's in-place positions.
void check_overlap(const Operation& operation, Member member);

}  // namespace farandole::sim::nccl
