// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/ScalarType.h>

#include <optional>

#include "farandole/comm/types.h"
#include "farandole/export.h"

namespace farandole {

/// The element type of comm for torch's `type`; nullopt for types that can only be moved as bytes
/// (complex, float8, ...).
FARANDOLE_API std::optional<comm::DataType> data_type_of(at::ScalarType type);

}  // namespace farandole
