// SPDX-License-Identifier: Apache-2.0
#include "support/pattern.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/half_types.h"

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

/// A whole number from -1 to 4; never 0 where it has a sign, as products would become -0.
int64_t contribution(int rank, size_t index, DataType dtype) {
  const size_t mixed = (index % Pattern::kPeriod * 7 + static_cast<size_t>(rank) * 13) % 8;
  if (dtype == DataType::kBool) return static_cast<int64_t>(mixed % 2);
  const std::array<int64_t, 8> values{dtype == DataType::kUInt8 ? 0 : -1, 1, 2, 2, 4, 2, 2, 1};
  return values[mixed];
}

/// In int64 or double, then cut to the dtype as its arithmetic does.
double reduction(int world_size, size_t index, DataType dtype, ReduceOp op) {
  int64_t result = contribution(0, index, dtype);
  for (int rank = 1; rank < world_size; ++rank) {
    result = combine(result, contribution(rank, index, dtype), op);
  }
  if (dtype == DataType::kBool) return result != 0 ? 1.0 : 0.0;
  if (op != ReduceOp::kAvg) return static_cast<double>(result);
  const double mean = static_cast<double>(result) / world_size;
  if (!is_floating(dtype)) return std::trunc(mean);
  if (dtype == DataType::kFloat64) return mean;
  // Rounded as the accumulator of the others divides, in float32.
  return static_cast<double>(static_cast<float>(result) / static_cast<float>(world_size));
}

}  // namespace

Pattern::Pattern(DataType dtype, const std::function<double(size_t)>& value)
    : element_bytes_(size_of(dtype)), bytes_(kPeriod * size_of(dtype)) {
  with_type(dtype, [&](auto sample) {
    for (size_t i = 0; i < kPeriod; ++i) {
      const auto element = from_number<decltype(sample)>(value(i));
      std::memcpy(bytes_.data() + i * element_bytes_, &element, element_bytes_);
    }
  });
}

Pattern Pattern::of_rank(int rank, DataType dtype) {
  return Pattern(dtype,
                 [=](size_t i) { return static_cast<double>(contribution(rank, i, dtype)); });
}

Pattern Pattern::of_reduction(int world_size, DataType dtype, ReduceOp op) {
  return Pattern(dtype, [=](size_t i) { return reduction(world_size, i, dtype, op); });
}

void Pattern::write(void* to, size_t offset, size_t count) const {
  auto* out = static_cast<unsigned char*>(to);
  for (size_t done = 0; done < count;) {
    const size_t at = (offset + done) % kPeriod;
    const size_t n = std::min(kPeriod - at, count - done);
    std::memcpy(out + done * element_bytes_, bytes_.data() + at * element_bytes_,
                n * element_bytes_);
    done += n;
  }
}

size_t Pattern::first_difference(const void* from, size_t offset, size_t count) const {
  const auto* in = static_cast<const unsigned char*>(from);
  for (size_t done = 0; done < count;) {
    const size_t at = (offset + done) % kPeriod;
    const size_t n = std::min(kPeriod - at, count - done);
    const auto* expected = bytes_.data() + at * element_bytes_;
    const auto* found = in + done * element_bytes_;
    if (std::memcmp(found, expected, n * element_bytes_) != 0) {
      const auto bytes = std::mismatch(found, found + n * element_bytes_, expected).first - found;
      return done + static_cast<size_t>(bytes) / element_bytes_;
    }
    done += n;
  }
  return count;
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
