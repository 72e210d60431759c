// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>
#include <utility>

#include "comm/nccl/nccl_api.h"
#include "farandole/comm/types.h"

namespace farandole::comm::nccl {

/// NCCL's words for a reduction.
struct Reduction {
  ncclDataType_t dtype;
  ncclRedOp_t op;
};

/// bool is reduced as bytes that are 0 or 1, where "or" is the maximum and "and" the minimum.
/// Throws NotSupported for what NCCL has not (int16, and bits of other types), and InvalidArgument
/// for a `factor`, if it is not 1, of other things than sums of floating-point numbers. `call` is
/// for texts.
Reduction reduction_of(DataType dtype, ReduceOp op, double factor, const std::string& call);

/// The operators of a communicator that multiply before they sum.
///
/// Threads: one at a time, that which calls NCCL.
class PremultipliedSums {
 public:
  /// Makes one unless there is one.
  ncclResult_t find(const NcclApi& api, ncclComm_t comm, DataType dtype, double factor,
                    ncclRedOp_t* op);

 private:
  std::map<std::pair<DataType, double>, ncclRedOp_t> made_;
};

}  // namespace farandole::comm::nccl
