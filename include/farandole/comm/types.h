// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "farandole/export.h"

namespace farandole::comm {

/// Element types of a collective. Half types are summed in float32 and rounded once at the end.
enum class DataType : uint8_t {
  kFloat64,
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt64,
  kInt32,
  kInt16,
  kInt8,
  kUInt8,
  kBool,  ///< one byte, 0 or 1; sum and max are "or", product and min are "and"
};

/// How elements of the ranks are combined, always in rank order, so that every rank and every run
/// gets the same bits.
enum class ReduceOp : uint8_t {
  kSum,
  kAvg,  ///< the sum divided by the world size; integers truncate towards zero; not for kBool
  kMin,  ///< NaN wins
  kMax,  ///< NaN wins
  kProduct,
  kBitAnd,  ///< bits of integers; bool as 0 or 1
  kBitOr,   ///< likewise
  kBitXor,  ///< likewise
};

/// The operation that a rank announces to its peers.
enum class OpKind : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kBroadcast,
  kBarrier,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllToAllV,
  kAllocate,         ///< allocation of symmetric memory
  kBucketReduction,  ///< see bucket_reduction.h
};

FARANDOLE_API size_t size_of(DataType dtype);         ///< bytes of one element
FARANDOLE_API const char* name_of(DataType dtype);    ///< as torch names it: "float32", "bfloat16"
FARANDOLE_API const char* name_of(ReduceOp op);       ///< "SUM", "AVG", ...
FARANDOLE_API const char* name_of(OpKind operation);  ///< "all_reduce", "barrier", ...

}  // namespace farandole::comm
