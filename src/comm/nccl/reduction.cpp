// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/reduction.h"

#include <cstring>
#include <optional>

#include "farandole/error.h"
#include "kernels/half_types.h"

namespace farandole::comm::nccl {
namespace {

std::optional<ncclDataType_t> dtype_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return ncclFloat64;
    case DataType::kFloat32:
      return ncclFloat32;
    case DataType::kFloat16:
      return ncclFloat16;
    case DataType::kBFloat16:
      return ncclBfloat16;
    case DataType::kInt64:
      return ncclInt64;
    case DataType::kInt32:
      return ncclInt32;
    case DataType::kInt16:
      return std::nullopt;
    case DataType::kInt8:
      return ncclInt8;
    case DataType::kUInt8:
    case DataType::kBool:
      return ncclUint8;
  }
  return std::nullopt;
}

std::optional<ncclRedOp_t> op_of(DataType dtype, ReduceOp op) {
  const bool is_bool = dtype == DataType::kBool;
  switch (op) {
    case ReduceOp::kSum:
      return is_bool ? ncclMax : ncclSum;
    case ReduceOp::kAvg:
      return ncclAvg;
    case ReduceOp::kMin:
      return ncclMin;
    case ReduceOp::kMax:
      return ncclMax;
    case ReduceOp::kProduct:
      return is_bool ? ncclMin : ncclProd;
    case ReduceOp::kBitAnd:
      if (is_bool) return ncclMin;
      return std::nullopt;
    case ReduceOp::kBitOr:
      if (is_bool) return ncclMax;
      return std::nullopt;
    case ReduceOp::kBitXor:
      return std::nullopt;
  }
  return std::nullopt;
}

bool is_floating(DataType dtype) {
  return dtype == DataType::kFloat64 || dtype == DataType::kFloat32 ||
         dtype == DataType::kFloat16 || dtype == DataType::kBFloat16;
}

/// `value` as an element of the type, for NCCL to read at once.
struct Scalar {
  alignas(8) unsigned char bytes[8] = {};

  Scalar(double value, DataType floating) {
    if (floating == DataType::kFloat64) set(value);
    if (floating == DataType::kFloat32) set(static_cast<float>(value));
    if (floating == DataType::kFloat16) set(Float16::from(static_cast<float>(value)).bits);
    if (floating == DataType::kBFloat16) set(BFloat16::from(static_cast<float>(value)).bits);
  }

  template <class T>
  void set(T value) {
    std::memcpy(bytes, &value, sizeof value);
  }
};

}  // namespace

Reduction reduction_of(DataType dtype, ReduceOp op, double factor, const std::string& call) {
  if (factor != 1 && (op != ReduceOp::kSum || !is_floating(dtype))) {
    throw InvalidArgument(
        "factor-without-sum",
        call + " of " + name_of(dtype) + " by " + name_of(op) + " was called with a factor.",
        "NCCL multiplies before it sums, and a factor of integers is none.",
        "pass a factor of 1, or sum numbers of a floating-point type.");
  }
  const auto nccl_dtype = dtype_of(dtype);
  const auto nccl_op = op_of(dtype, op);
  if (nccl_dtype && nccl_op) return {*nccl_dtype, *nccl_op};
  throw NotSupported(
      "nccl-reduction", call + " cannot reduce " + name_of(dtype) + " by " + name_of(op) + ".",
      nccl_dtype ? "NCCL combines numbers, not their bits." : "NCCL has no integers of 16 bits.",
      nccl_dtype ? "reduce on the CPU, or use SUM, MIN or MAX of flags."
                 : "convert the tensor to int32 first.");
}

ncclResult_t PremultipliedSums::find(const NcclApi& api, ncclComm_t comm, DataType dtype,
                                     double factor, ncclRedOp_t* op) {
  constexpr size_t kMost = 64;  // factors that change from step to step must not pile up
  const std::pair<DataType, double> key(dtype, factor);
  if (const auto found = made_.find(key); found != made_.end()) {
    *op = found->second;
    return ncclSuccess;
  }
  if (made_.size() == kMost) {
    for (const auto& each : made_) api.RedOpDestroy(each.second, comm);
    made_.clear();
  }
  Scalar scalar(factor, dtype);
  const ncclResult_t result =
      api.RedOpCreatePreMulSum(op, scalar.bytes, *dtype_of(dtype), ncclScalarHostImmediate, comm);
  if (result == ncclSuccess) made_.emplace(key, *op);
  return result;
}

}  // namespace farandole::comm::nccl
