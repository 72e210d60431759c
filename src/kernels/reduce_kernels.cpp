// SPDX-License-Identifier: Apache-2.0
#include "kernels/reduce_kernels.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "farandole/error.h"
#include "kernels/half_types.h"
#include "kernels/target_clones.h"

namespace farandole::comm {
namespace {

/// An element at any address: callers need not align their buffers. (Loops over elements that are
/// copied in and out with memcpy become scalar for some types.)
template <class T>
struct __attribute__((packed)) Unaligned {
  T value;
};

/// The type in which elements are combined: float32 for half types, else the element's own.
template <class T>
struct Accumulator {
  using type = T;
  static FARANDOLE_INLINE T load(T value) { return value; }
  static FARANDOLE_INLINE T store(T value) { return value; }
};
template <class Half>
struct HalfAccumulator {
  using type = float;
  static FARANDOLE_INLINE float load(Half value) { return static_cast<float>(value); }
  static FARANDOLE_INLINE Half store(float value) { return Half::from(value); }
};
template <>
struct Accumulator<BFloat16> : HalfAccumulator<BFloat16> {};
template <>
struct Accumulator<Float16> : HalfAccumulator<Float16> {};

/// Integers wrap around: sums are taken in the unsigned type, where overflow is defined.
template <class A, bool is_integer = std::is_integral_v<A>>
struct Wrapping {
  using type = std::make_unsigned_t<A>;
};
template <class A>
struct Wrapping<A, false> {
  using type = A;
};

struct Sum {
  template <class A>
  static FARANDOLE_INLINE A combine(A a, A b) {
    using W = typename Wrapping<A>::type;
    return static_cast<A>(static_cast<W>(a) + static_cast<W>(b));
  }
};
struct Product {
  template <class A>
  static FARANDOLE_INLINE A combine(A a, A b) {
    using W = typename Wrapping<A>::type;
    // uint16_t operands would be multiplied as int and could overflow it.
    using Wide = std::conditional_t<std::is_integral_v<A> && sizeof(A) < 4, uint32_t, W>;
    return static_cast<A>(static_cast<Wide>(static_cast<W>(a)) *
                          static_cast<Wide>(static_cast<W>(b)));
  }
};
struct Min {
  template <class A>
  static FARANDOLE_INLINE A combine(A a, A b) {
    const A smaller = a < b ? a : b;
    return a != a ? a : smaller;
  }
};
struct Max {
  template <class A>
  static FARANDOLE_INLINE A combine(A a, A b) {
    const A larger = a > b ? a : b;
    return a != a ? a : larger;
  }
};

struct BitAnd {
  template <class A>
  static FARANDOLE_INLINE A combine(A a, A b) {
    return static_cast<A>(a & b);
  }
};
struct BitOr {
  template <class A>
  static FARANDOLE_INLINE A combine(A a, A b) {
    return static_cast<A>(a | b);
  }
};
struct BitXor {
  template <class A>
  static FARANDOLE_INLINE A combine(A a, A b) {
    return static_cast<A>(a ^ b);
  }
};

/// What becomes of a sum. Multiplying is quicker than dividing, and gives the same bits where the
/// divisor is a power of two.
enum class Finish { kNothing, kDivide, kMultiply };

/// `operand` is the divisor or factor. Integers are divided in a type that holds the number of
/// sources, which int8 does not.
template <class A, Finish finish>
FARANDOLE_INLINE A finished(A sum, double operand) {
  using Wide = std::conditional_t<std::is_integral_v<A>, int64_t, A>;
  const auto by = static_cast<Wide>(operand);
  if constexpr (finish == Finish::kNothing) return sum;
  if constexpr (finish == Finish::kDivide) return static_cast<A>(static_cast<Wide>(sum) / by);
  if constexpr (finish == Finish::kMultiply) return static_cast<A>(static_cast<Wide>(sum) * by);
}

/// Integers are divided by their number alone; where that is a constant, so is the divisor, which
/// spares the division.
template <class T>
FARANDOLE_INLINE double divisor_among(size_t sources, double operand) {
  return std::is_integral_v<T> ? static_cast<double>(sources) : operand;
}

/// Elements handled at a time where accumulators or several destinations take part: they stay in
/// the first-level cache.
constexpr size_t kBlock = 2048;
/// Sources that one loop reads side by side; more would outrun the prefetchers.
constexpr size_t kFused = 4;

/// Folds `kCount` sources into `into`, from left to right, in one loop; on top of what `into` holds
/// if `continues`. `into` is the accumulators, or the destination itself.
template <class T, class Op, Finish finish, bool continues, size_t kCount, class Into>
FARANDOLE_INLINE void fold(const void* const* sources, size_t offset, size_t n, double operand,
                           Into* into) {
  using Acc = Accumulator<T>;
  using A = typename Acc::type;
  const Unaligned<T>* s[kCount];
  for (size_t k = 0; k < kCount; ++k) s[k] = static_cast<const Unaligned<T>*>(sources[k]) + offset;
#pragma GCC ivdep
  for (size_t i = 0; i < n; ++i) {
    A value;
    if constexpr (continues) {
      value = into[i];
    } else {
      value = Acc::load(s[0][i].value);
    }
#pragma GCC unroll 4
    for (size_t k = continues ? 0 : 1; k < kCount; ++k) {
      value = Op::template combine<A>(value, Acc::load(s[k][i].value));
    }
    value = finished<A, finish>(value, operand);
    if constexpr (std::is_same_v<Into, A>) {
      into[i] = value;
    } else {
      into[i].value = Acc::store(value);
    }
  }
}

/// Up to kFused sources, straight into the destination.
template <class T, class Op, Finish finish>
FARANDOLE_INLINE void reduce_few(const Sources& sources, size_t offset, size_t n, double operand,
                                 Unaligned<T>* out) {
  const void* const* from = sources.buffers;
  switch (sources.size) {
    case 1:
      return fold<T, Op, finish, false, 1>(from, offset, n, divisor_among<T>(1, operand), out);
    case 2:
      return fold<T, Op, finish, false, 2>(from, offset, n, divisor_among<T>(2, operand), out);
    case 3:
      return fold<T, Op, finish, false, 3>(from, offset, n, divisor_among<T>(3, operand), out);
    default:
      return fold<T, Op, finish, false, kFused>(from, offset, n, divisor_among<T>(kFused, operand),
                                                out);
  }
}

/// More sources than one loop takes: the first few make accumulators, the others join them.
template <class T, class Op, Finish finish>
FARANDOLE_INLINE void reduce_many_block(const Sources& sources, size_t offset, size_t n,
                                        double operand, Unaligned<T>* out) {
  using Acc = Accumulator<T>;
  using A = typename Acc::type;
  alignas(64) A accumulators[kBlock];
  fold<T, Op, Finish::kNothing, false, kFused>(sources.buffers, offset, n, 1, accumulators);
  size_t s = kFused;
  for (; s + kFused <= sources.size; s += kFused) {
    fold<T, Op, Finish::kNothing, true, kFused>(sources.buffers + s, offset, n, 1, accumulators);
  }
  for (; s < sources.size; ++s) {
    fold<T, Op, Finish::kNothing, true, 1>(sources.buffers + s, offset, n, 1, accumulators);
  }
  for (size_t i = 0; i < n; ++i) {
    out[i].value = Acc::store(finished<A, finish>(accumulators[i], operand));
  }
}

template <class T, class Op, Finish finish>
FARANDOLE_INLINE void reduce_typed(const Sources& sources, const Destinations& destinations,
                                   size_t count, double operand) {
  auto* out = static_cast<Unaligned<T>*>(destinations.buffers[0]);
  const bool fused = sources.size <= kFused;
  const size_t block = fused && destinations.size == 1 ? count : kBlock;
  for (size_t offset = 0; offset < count; offset += block) {
    const size_t n = std::min(block, count - offset);
    if (fused) {
      reduce_few<T, Op, finish>(sources, offset, n, operand, out + offset);
    } else {
      reduce_many_block<T, Op, finish>(sources, offset, n, operand, out + offset);
    }
    for (size_t d = 1; d < destinations.size; ++d) {
      std::memcpy(static_cast<Unaligned<T>*>(destinations.buffers[d]) + offset, out + offset,
                  n * sizeof(T));
    }
  }
}

// A plain function for each (dtype, operation) pair: see target_clones.h.
#define FARANDOLE_KERNEL(T, Op, finish)                                                         \
  FARANDOLE_CLONES void kernel_##T##_##Op##_##finish(                                           \
      const Sources& sources, const Destinations& destinations, size_t count, double operand) { \
    reduce_typed<T, Op, Finish::finish>(sources, destinations, count, operand);                 \
  }
#define FARANDOLE_KERNELS(T)         \
  FARANDOLE_KERNEL(T, Sum, kNothing) \
  FARANDOLE_KERNEL(T, Sum, kDivide)  \
  FARANDOLE_KERNEL(T, Min, kNothing) \
  FARANDOLE_KERNEL(T, Max, kNothing) \
  FARANDOLE_KERNEL(T, Product, kNothing)

#define FARANDOLE_FLOATING_KERNELS(T) \
  FARANDOLE_KERNELS(T)                \
  FARANDOLE_KERNEL(T, Sum, kMultiply)

#define FARANDOLE_INTEGER_KERNELS(T)    \
  FARANDOLE_KERNELS(T)                  \
  FARANDOLE_KERNEL(T, BitAnd, kNothing) \
  FARANDOLE_KERNEL(T, BitOr, kNothing)  \
  FARANDOLE_KERNEL(T, BitXor, kNothing)

FARANDOLE_FLOATING_KERNELS(double)
FARANDOLE_FLOATING_KERNELS(float)
FARANDOLE_FLOATING_KERNELS(Float16)
FARANDOLE_FLOATING_KERNELS(BFloat16)
FARANDOLE_INTEGER_KERNELS(int64_t)
FARANDOLE_INTEGER_KERNELS(int32_t)
FARANDOLE_INTEGER_KERNELS(int16_t)
FARANDOLE_INTEGER_KERNELS(int8_t)
FARANDOLE_INTEGER_KERNELS(uint8_t)

using Kernel = void (*)(const Sources&, const Destinations&, size_t, double);

#define FARANDOLE_SELECT_ARITHMETIC(T) \
  case ReduceOp::kSum:                 \
    return kernel_##T##_Sum_kNothing;  \
  case ReduceOp::kAvg:                 \
    return kernel_##T##_Sum_kDivide;   \
  case ReduceOp::kMin:                 \
    return kernel_##T##_Min_kNothing;  \
  case ReduceOp::kMax:                 \
    return kernel_##T##_Max_kNothing;  \
  case ReduceOp::kProduct:             \
    return kernel_##T##_Product_kNothing
#define FARANDOLE_SELECT_FLOATING(T) \
  switch (op) {                      \
    FARANDOLE_SELECT_ARITHMETIC(T);  \
    case ReduceOp::kBitAnd:          \
    case ReduceOp::kBitOr:           \
    case ReduceOp::kBitXor:          \
      return nullptr;                \
  }                                  \
  return nullptr
#define FARANDOLE_SELECT_INTEGER(T)        \
  switch (op) {                            \
    FARANDOLE_SELECT_ARITHMETIC(T);        \
    case ReduceOp::kBitAnd:                \
      return kernel_##T##_BitAnd_kNothing; \
    case ReduceOp::kBitOr:                 \
      return kernel_##T##_BitOr_kNothing;  \
    case ReduceOp::kBitXor:                \
      return kernel_##T##_BitXor_kNothing; \
  }                                        \
  return nullptr

Kernel select_bool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return kernel_uint8_t_Max_kNothing;
    case ReduceOp::kProduct:
    case ReduceOp::kMin:
    case ReduceOp::kBitAnd:
      return kernel_uint8_t_Min_kNothing;
    case ReduceOp::kBitXor:
      return kernel_uint8_t_BitXor_kNothing;
    case ReduceOp::kAvg:
      return nullptr;
  }
  return nullptr;
}

Kernel select(DataType dtype, ReduceOp op) {
  switch (dtype) {
    case DataType::kFloat64:
      FARANDOLE_SELECT_FLOATING(double);
    case DataType::kFloat32:
      FARANDOLE_SELECT_FLOATING(float);
    case DataType::kFloat16:
      FARANDOLE_SELECT_FLOATING(Float16);
    case DataType::kBFloat16:
      FARANDOLE_SELECT_FLOATING(BFloat16);
    case DataType::kInt64:
      FARANDOLE_SELECT_INTEGER(int64_t);
    case DataType::kInt32:
      FARANDOLE_SELECT_INTEGER(int32_t);
    case DataType::kInt16:
      FARANDOLE_SELECT_INTEGER(int16_t);
    case DataType::kInt8:
      FARANDOLE_SELECT_INTEGER(int8_t);
    case DataType::kUInt8:
      FARANDOLE_SELECT_INTEGER(uint8_t);
    case DataType::kBool:
      return select_bool(op);
  }
  return nullptr;
}

/// The mean as a product; floating-point types alone.
Kernel select_multiplied(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return kernel_double_Sum_kMultiply;
    case DataType::kFloat32:
      return kernel_float_Sum_kMultiply;
    case DataType::kFloat16:
      return kernel_Float16_Sum_kMultiply;
    case DataType::kBFloat16:
      return kernel_BFloat16_Sum_kMultiply;
    default:
      return nullptr;
  }
}

/// Whether 1 / divisor is exact, in float32 too.
bool has_exact_inverse(double divisor) {
  int exponent = 0;
  return std::frexp(divisor, &exponent) == 0.5 && exponent > -100 && exponent < 100;
}

}  // namespace

bool is_floating(DataType dtype) { return select_multiplied(dtype) != nullptr; }

void check_reduction(DataType dtype, ReduceOp op) {
  if (select(dtype, op) != nullptr) return;
  throw InvalidArgument(
      "dtype-not-reducible",
      std::string("cannot reduce ") + name_of(dtype) + " with " + name_of(op) + ".",
      "the result would not be a value of that dtype.",
      "use AVG on numbers, and BAND, BOR and BXOR on integers and bool, or convert the tensor "
      "first.");
}

void reduce(Sources sources, Destinations destinations, size_t count, DataType dtype, ReduceOp op) {
  check_reduction(dtype, op);
  const auto divisor = static_cast<double>(sources.size);
  if (op == ReduceOp::kAvg && is_floating(dtype)) {
    return average(sources, destinations, count, dtype, divisor);
  }
  if (count != 0) select(dtype, op)(sources, destinations, count, divisor);
}

void average(Sources sources, Destinations destinations, size_t count, DataType dtype,
             double divisor) {
  if (count == 0) return;
  if (divisor == 1) {
    select(dtype, ReduceOp::kSum)(sources, destinations, count, 1);
  } else if (has_exact_inverse(divisor)) {
    select_multiplied(dtype)(sources, destinations, count, 1 / divisor);
  } else {
    select(dtype, ReduceOp::kAvg)(sources, destinations, count, divisor);
  }
}

}  // namespace farandole::comm
