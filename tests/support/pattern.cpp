// SPDX-License-Identifier: Apache-2.0
#include "support/typed_data.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "comm/half_types.h"

namespace farandole::test {

using comm::BFloat16;
using comm::DataType;
using comm::Float16;
using comm::ReduceOp;

namespace {

/// Calls `f` with a value of the C++ type behind `dtype`.
template <class F>
auto with_type(DataType dtype, const F& f) {
  switch (dtype) {
    case DataType::kFloat64:
      return f(double{});
    case DataType::kFloat32:
      return f(float{});
    case DataType::kFloat16:
      return f(Float16{});
    case DataType::kBFloat16:
      return f(BFloat16{});
    case DataType::kInt64:
      return f(int64_t{});
    case DataType::kInt32:
      return f(int32_t{});
    case DataType::kInt16:
      return f(int16_t{});
    case DataType::kInt8:
      return f(int8_t{});
    case DataType::kUInt8:
    case DataType::kBool:
      break;
  }
  return f(uint8_t{});
}

template <class T>
T from_number(double value) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return T::from(static_cast<float>(value));
  } else if constexpr (std::is_floating_point_v<T>) {
    return static_cast<T>(value);
  } else {
    return static_cast<T>(static_cast<int64_t>(value));
  }
}

template <class T>
double to_number(T value) {
  if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>) {
    return static_cast<double>(static_cast<float>(value));
  } else {
    return static_cast<double>(value);
  }
}

bool is_floating(DataType dtype) {
  return dtype == DataType::kFloat64 || dtype == DataType::kFloat32 ||
         dtype == DataType::kFloat16 || dtype == DataType::kBFloat16;
}

int64_t combine(int64_t a, int64_t b, ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return a + b;
    case ReduceOp::kMin:
      return std::min(a, b);
    case ReduceOp::kMax:
      return std::max(a, b);
    case ReduceOp::kProduct:
      return a * b;
    case ReduceOp::kBitAnd:
      return a & b;
    case ReduceOp::kBitOr:
      return a | b;
    case ReduceOp::kBitXor:
      return a ^ b;
  }
  return 0;
}

}  // namespace

TypedData::TypedData(DataType dtype, size_t count)
    : dtype_(dtype), count_(count), bytes_(kMisalignment + count * size_of(dtype)) {}

void* TypedData::at(size_t index) {
  return bytes_.data() + kMisalignment + index * size_of(dtype_);
}

void TypedData::set(size_t index, int64_t value) {
  with_type(dtype_, [&](auto sample) {
    const auto element = from_number<decltype(sample)>(static_cast<double>(value));
    std::memcpy(at(index), &element, sizeof(element));
  });
}

double TypedData::get(size_t index) const {
  return with_type(dtype_, [&](auto element) {
    std::memcpy(&element, bytes_.data() + kMisalignment + index * sizeof(element), sizeof(element));
    return to_number(element);
  });
}

int64_t contribution(int rank, size_t index, DataType dtype) {
  const auto mixed =
      static_cast<int64_t>((index * 7 + static_cast<size_t>(rank) * 13 + index / 97) % 8);
  if (dtype == DataType::kBool) return mixed % 2;
  // Powers of two keep products of many ranks exact in every float type.
  return mixed == 3 || mixed > 4 ? 2 : mixed;
}

double expected_reduction(int world_size, size_t index, DataType dtype, ReduceOp op) {
  int64_t result = contribution(0, index, dtype);
  for (int rank = 1; rank < world_size; ++rank) {
    result = combine(result, contribution(rank, index, dtype), op);
  }
  if (dtype == DataType::kBool) return result != 0 ? 1.0 : 0.0;
  if (op == ReduceOp::kAvg) {
    const double mean = static_cast<double>(result) / world_size;
    if (!is_floating(dtype)) return std::trunc(mean);
    // Rounded as the dtype's accumulator divides: in float32 for all but float64.
    return with_type(dtype, [&](auto sample) {
      using T = decltype(sample);
      if constexpr (std::is_same_v<T, double>) return mean;
      const float quotient = static_cast<float>(result) / static_cast<float>(world_size);
      return to_number(from_number<T>(static_cast<double>(quotient)));
    });
  }
  return with_type(dtype, [&](auto sample) {
    return to_number(from_number<decltype(sample)>(static_cast<double>(result)));
  });
}

bool has_reduction(DataType dtype, ReduceOp op) {
  const bool bitwise = op == ReduceOp::kBitAnd || op == ReduceOp::kBitOr || op == ReduceOp::kBitXor;
  if (bitwise) return !is_floating(dtype);
  return !(dtype == DataType::kBool && op == ReduceOp::kAvg);
}

const std::vector<DataType>& all_dtypes() {
  static const std::vector<DataType> list{
      DataType::kFloat64, DataType::kFloat32, DataType::kFloat16, DataType::kBFloat16,
      DataType::kInt64,   DataType::kInt32,   DataType::kInt16,   DataType::kInt8,
      DataType::kUInt8,   DataType::kBool};
  return list;
}

const std::vector<ReduceOp>& all_reduce_ops() {
  static const std::vector<ReduceOp> list{ReduceOp::kSum,   ReduceOp::kAvg,     ReduceOp::kMin,
                                          ReduceOp::kMax,   ReduceOp::kProduct, ReduceOp::kBitAnd,
                                          ReduceOp::kBitOr, ReduceOp::kBitXor};
  return list;
}

}  // namespace farandole::test
