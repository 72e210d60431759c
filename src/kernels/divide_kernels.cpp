// SPDX-License-Identifier: Apache-2.0
#include "kernels/divide_kernels.h"

#include <cstdint>
#include <cstring>

namespace farandole::comm {
namespace {

template <class Integer>
void divide_each(void* values, size_t count, int divisor) {
  auto* place = static_cast<std::byte*>(values);
  for (size_t i = 0; i < count; ++i, place += sizeof(Integer)) {
    Integer each;
    std::memcpy(&each, place, sizeof(each));
    each = static_cast<Integer>(static_cast<int64_t>(each) / divisor);
    std::memcpy(place, &each, sizeof(each));
  }
}

}  // namespace

void divide(void* values, size_t count, DataType dtype, int divisor) {
  switch (dtype) {
    case DataType::kInt64:
      return divide_each<int64_t>(values, count, divisor);
    case DataType::kInt32:
      return divide_each<int32_t>(values, count, divisor);
    case DataType::kInt16:
      return divide_each<int16_t>(values, count, divisor);
    case DataType::kInt8:
      return divide_each<int8_t>(values, count, divisor);
    default:
      return divide_each<uint8_t>(values, count, divisor);
  }
}

}  // namespace farandole::comm
