// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/reduction.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>

namespace farandole::sim::nccl {
namespace {

/// In which values of type T are computed.
template <class T>
struct ComputeType {
  using Type = T;
};
template <>
struct ComputeType<__nv_bfloat16> {
  using Type = float;
};
template <>
struct ComputeType<__half> {
  using Type = float;
};

template <class A>
A add(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}

template <class A>
A multiply(A a, A b) {
  if constexpr (std::is_integral_v<A>) {
    return static_cast<A>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

template <class A>
A combine(A a, A b, ncclRedOp_t op) {
  if (op == ncclProd) return multiply(a, b);
  if (op == ncclMin) return std::min(a, b);
  if (op == ncclMax) return std::max(a, b);
  return add(a, b);
}

template <class T>
T load(const char* values, size_t i) {
  T value;
  std::memcpy(&value, values + i * sizeof(T), sizeof(T));
  return value;
}

template <class T>
void store(char* values, size_t i, T value) {
  std::memcpy(values + i * sizeof(T), &value, sizeof(T));
}

template <class T>
void reduce_as(const std::vector<const char*>& inputs, char* output, size_t count, ncclRedOp_t op) {
  using A = typename ComputeType<T>::Type;
  for (size_t i = 0; i < count; ++i) {
    A result = static_cast<A>(load<T>(inputs.front(), i));
    for (size_t each = 1; each < inputs.size(); ++each) {
      result = combine(result, static_cast<A>(load<T>(inputs[each], i)), op);
    }
    if (op == ncclAvg) result = static_cast<A>(result / static_cast<A>(inputs.size()));
    store(output, i, static_cast<T>(result));
  }
}

template <class T>
void scale_as(const char* input, const char* factor, char* output, size_t count) {
  using A = typename ComputeType<T>::Type;
  const A by = static_cast<A>(load<T>(factor, 0));
  for (size_t i = 0; i < count; ++i) {
    store(output, i, static_cast<T>(multiply(static_cast<A>(load<T>(input, i)), by)));
  }
}

/// Calls `body` with a value of the type that `dtype` stands for.
template <class Body>
void with_type(ncclDataType_t dtype, const Body& body) {
  switch (dtype) {
    case ncclInt8:
      return body(int8_t{});
    case ncclUint8:
      return body(uint8_t{});
    case ncclInt32:
      return body(int32_t{});
    case ncclUint32:
      return body(uint32_t{});
    case ncclInt64:
      return body(int64_t{});
    case ncclUint64:
      return body(uint64_t{});
    case ncclFloat16:
      return body(__half{});
    case ncclFloat32:
      return body(float{});
    case ncclFloat64:
      return body(double{});
    case ncclBfloat16:
      return body(__nv_bfloat16{});
    default:
      return;
  }
}

}  // namespace

size_t size_of(ncclDataType_t dtype) {
  size_t bytes = 0;
  with_type(dtype, [&](auto zero) { bytes = sizeof zero; });
  return bytes;
}

const char* name_of(ncclDataType_t dtype) {
  static constexpr const char* kNames[] = {"int8",   "uint8",   "int32",   "uint32",  "int64",
                                           "uint64", "float16", "float32", "float64", "bfloat16"};
  return size_of(dtype) == 0 ? "unknown" : kNames[dtype];
}

void reduce(const std::vector<const char*>& inputs, char* output, size_t count,
            ncclDataType_t dtype, ncclRedOp_t op) {
  with_type(dtype, [&](auto zero) { reduce_as<decltype(zero)>(inputs, output, count, op); });
}

void scale(const char* input, const char* factor, char* output, size_t count,
           ncclDataType_t dtype) {
  with_type(dtype, [&](auto zero) { scale_as<decltype(zero)>(input, factor, output, count); });
}

}  // namespace farandole::sim::nccl
