// SPDX-License-Identifier: Apache-2.0
#include "kernels/move_kernels.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <type_traits>

#include "kernels/half_types.h"
#include "kernels/target_clones.h"

namespace farandole {
namespace {

using comm::BFloat16;
using comm::DataType;
using comm::Float16;

/// The element types, in the order of the table of loops.
constexpr DataType kTypes[] = {DataType::kFloat64, DataType::kFloat32, DataType::kFloat16,
                               DataType::kBFloat16};
constexpr size_t kTypeCount = 4;

/// An element as it lies in memory: loops over words become SIMD, those over structs do not.
template <class T>
struct Element {
  using Word = T;
  using Bits = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;
  /// The exponent, whose bits are all set in NaN and Inf alone.
  static constexpr Bits kExponent =
      static_cast<Bits>(sizeof(T) == 8 ? 0x7ff0000000000000U : 0x7f800000U);
  static FARANDOLE_INLINE T load(Word word) { return word; }
  template <class A>
  static FARANDOLE_INLINE Word store(A value) {
    return static_cast<T>(value);
  }
  static FARANDOLE_INLINE Bits bits(Word word) {
    Bits bits;
    std::memcpy(&bits, &word, sizeof(bits));
    return bits;
  }
};
template <class Half, uint16_t exponent>
struct HalfElement {
  using Word = uint16_t;
  using Bits = uint16_t;
  static constexpr Bits kExponent = exponent;
  static FARANDOLE_INLINE float load(Word word) { return static_cast<float>(Half{word}); }
  template <class A>
  static FARANDOLE_INLINE Word store(A value) {
    return Half::from(static_cast<float>(value)).bits;
  }
  static FARANDOLE_INLINE Bits bits(Word word) { return word; }
};
template <>
struct Element<Float16> : HalfElement<Float16, 0x7c00U> {};
template <>
struct Element<BFloat16> : HalfElement<BFloat16, 0x7f80U> {};

template <class From, class To, bool accumulate, bool check>
FARANDOLE_INLINE bool move_typed(const void* source, void* target, size_t count, double scale) {
  constexpr bool in_double = std::is_same_v<From, double> || std::is_same_v<To, double>;
  using A = std::conditional_t<in_double, double, float>;
  using Target = Element<To>;
  const auto* from = static_cast<const typename Element<From>::Word*>(source);
  auto* to = static_cast<typename Target::Word*>(target);
  const auto factor = static_cast<A>(scale);
  typename Target::Bits largest = 0;
#pragma GCC ivdep
  for (size_t i = 0; i < count; ++i) {
    A value = static_cast<A>(Element<From>::load(from[i])) * factor;
    if (accumulate) value = static_cast<A>(Target::load(to[i])) + value;
    const auto word = Target::store(value);
    if (check) {
      const auto exponent =
          static_cast<typename Target::Bits>(Target::bits(word) & Target::kExponent);
      largest = largest < exponent ? exponent : largest;
    }
    to[i] = word;
  }
  return largest != Target::kExponent;
}

// A plain function for each loop: see target_clones.h.
#define FARANDOLE_MOVE(From, To, accumulate, check)                               \
  FARANDOLE_CLONES bool move_##From##_##To##_##accumulate##_##check(              \
      const void* source, void* target, size_t count, double scale) {             \
    return move_typed<From, To, accumulate, check>(source, target, count, scale); \
  }
#define FARANDOLE_MOVES(From, To)        \
  FARANDOLE_MOVE(From, To, false, false) \
  FARANDOLE_MOVE(From, To, false, true)  \
  FARANDOLE_MOVE(From, To, true, false)  \
  FARANDOLE_MOVE(From, To, true, true)
#define FARANDOLE_MOVES_FROM(From) \
  FARANDOLE_MOVES(From, double)    \
  FARANDOLE_MOVES(From, float)     \
  FARANDOLE_MOVES(From, Float16)   \
  FARANDOLE_MOVES(From, BFloat16)

FARANDOLE_MOVES_FROM(double)
FARANDOLE_MOVES_FROM(float)
FARANDOLE_MOVES_FROM(Float16)
FARANDOLE_MOVES_FROM(BFloat16)

#define FARANDOLE_ROW(From, To)                                            \
  {                                                                        \
    {move_##From##_##To##_false_false, move_##From##_##To##_false_true},   \
        {move_##From##_##To##_true_false, move_##From##_##To##_true_true}, \
  }
#define FARANDOLE_ROWS(From)                                                               \
  {                                                                                        \
    FARANDOLE_ROW(From, double), FARANDOLE_ROW(From, float), FARANDOLE_ROW(From, Float16), \
        FARANDOLE_ROW(From, BFloat16),                                                     \
  }

/// By source, target, accumulate and check.
constexpr MoveKernel kLoops[kTypeCount][kTypeCount][2][2] = {
    FARANDOLE_ROWS(double), FARANDOLE_ROWS(float), FARANDOLE_ROWS(Float16),
    FARANDOLE_ROWS(BFloat16)};

size_t index_of(DataType type) {
  return static_cast<size_t>(std::find(std::begin(kTypes), std::end(kTypes), type) - kTypes);
}

}  // namespace

MoveKernel move_kernel(DataType source, DataType target, bool accumulate, bool check_finite) {
  const size_t from = index_of(source);
  const size_t to = index_of(target);
  if (from == kTypeCount || to == kTypeCount) return nullptr;
  return kLoops[from][to][accumulate][check_finite];
}

}  // namespace farandole
