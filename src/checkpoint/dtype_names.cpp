// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/dtype_names.h"

#include <utility>

#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

constexpr std::pair<at::ScalarType, const char*> kNames[] = {{at::kDouble, "F64"},
                                                             {at::kFloat, "F32"},
                                                             {at::kHalf, "F16"},
                                                             {at::kBFloat16, "BF16"},
                                                             {at::kLong, "I64"},
                                                             {at::kInt, "I32"},
                                                             {at::kShort, "I16"},
                                                             {at::kChar, "I8"},
                                                             {at::kByte, "U8"},
                                                             {at::kBool, "BOOL"},
                                                             {at::kComplexFloat, "C64"},
                                                             {at::kFloat8_e5m2, "F8_E5M2"},
                                                             {at::kFloat8_e4m3fn, "F8_E4M3"},
                                                             {at::kUInt16, "U16"},
                                                             {at::kUInt32, "U32"},
                                                             {at::kUInt64, "U64"},
                                                             {at::kComplexDouble, "C128"}};

}  // namespace

std::string name_of_dtype(at::ScalarType dtype, const std::string& key) {
  for (const auto& [known, name] : kNames) {
    if (known == dtype) return name;
  }
  throw NotSupported("checkpoint-dtype",
                     "the checkpoint's tensor '" + key + "' has the dtype " +
                         std::string(c10::toString(dtype)) + ".",
                     "safetensors has no name for it.",
                     "convert it to another dtype, or leave it out of the checkpoint.");
}

std::optional<at::ScalarType> dtype_named(const std::string& name) {
  for (const auto& [dtype, known] : kNames) {
    if (name == known) return dtype;
  }
  return std::nullopt;
}

}  // namespace farandole::checkpoint
