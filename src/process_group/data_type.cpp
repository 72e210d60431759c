// SPDX-License-Identifier: Apache-2.0
#include "process_group/data_type.h"

namespace farandole {

std::optional<comm::DataType> data_type_of(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return comm::DataType::kFloat64;
    case at::kFloat:
      return comm::DataType::kFloat32;
    case at::kHalf:
      return comm::DataType::kFloat16;
    case at::kBFloat16:
      return comm::DataType::kBFloat16;
    case at::kLong:
      return comm::DataType::kInt64;
    case at::kInt:
      return comm::DataType::kInt32;
    case at::kShort:
      return comm::DataType::kInt16;
    case at::kChar:
      return comm::DataType::kInt8;
    case at::kByte:
      return comm::DataType::kUInt8;
    case at::kBool:
      return comm::DataType::kBool;
    default:
      return std::nullopt;
  }
}

}  // namespace farandole
