// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>

namespace farandole::checkpoint {

/// What safetensors calls a dtype. Throws NotSupported for one that it has no name for; `key`: of
/// the tensor, for the message.
std::string name_of_dtype(at::ScalarType dtype, const std::string& key);
/// nullopt for unknown names.
std::optional<at::ScalarType> dtype_named(const std::string& name);

}  // namespace farandole::checkpoint
