// SPDX-License-Identifier: Apache-2.0
#include "ddp/finite_check.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>

#include <cstdint>

#include "ddp/finite_loops.h"
#include "farandole/error.h"
#include "process_group/flat_tensor.h"

namespace farandole {
namespace {

using comm::DataType;

/// The least h with 2^h >= terms: a sum of them has an exponent of at most h more.
unsigned headroom_of(size_t terms) {
  unsigned headroom = 0;
  while ((size_t{1} << headroom) < terms) ++headroom;
  return headroom;
}

/// All bits of the exponent are set in NaN and Inf alone; its lowest bit is `unit`.
template <class Word>
bool are_below(const void* data, size_t count, Word mask, Word unit, unsigned headroom) {
  const auto largest = largest_exponent(static_cast<const Word*>(data), count, mask);
  return largest < mask - headroom * unit;
}

}  // namespace

bool are_finite(const void* data, size_t count, DataType dtype, size_t terms) {
  const unsigned headroom = headroom_of(terms);
  switch (dtype) {
    case DataType::kFloat64:
      return are_below<uint64_t>(data, count, 0x7ff0000000000000U, uint64_t{1} << 52, headroom);
    case DataType::kFloat32:
      return are_below<uint32_t>(data, count, 0x7f800000U, uint32_t{1} << 23, headroom);
    case DataType::kBFloat16:
      return are_below<uint16_t>(data, count, 0x7f80U, uint16_t{1} << 7, headroom);
    case DataType::kFloat16:  // whose sums fit into float32
      return are_below<uint16_t>(data, count, 0x7c00U, uint16_t{1} << 10, 0);
    default:
      throw InvalidArgument("are_finite() got a dtype that is not of floating point.",
                            "all other numbers are finite.", "do not ask.");
  }
}

bool is_finite(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  const bool may_have_others = tensor.is_floating_point() || tensor.is_complex();
  if (tensor.numel() == 0 || !may_have_others) return true;
  if (tensor.layout() != at::kStrided) {
    return tensor.layout() == at::kSparse ? is_finite(tensor._values())
                                          : is_finite(tensor.to_dense());
  }
  const auto dtype = data_type_of(c10::toRealValueType(tensor.scalar_type()));
  if (tensor.is_cpu() && dtype && tensor.is_non_overlapping_and_dense()) {
    const size_t reals = static_cast<size_t>(tensor.numel()) * (tensor.is_complex() ? 2 : 1);
    return are_finite(tensor.const_data_ptr(), reals, *dtype);
  }
  return at::isfinite(tensor).all().item<bool>();
}

}  // namespace farandole
