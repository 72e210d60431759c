// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/export.h"

#define FARANDOLE_VERSION_MAJOR 0
#define FARANDOLE_VERSION_MINOR 1
#define FARANDOLE_VERSION_PATCH 0
#define FARANDOLE_VERSION "0.1.0"

namespace farandole {

/// The version of the library that is loaded; FARANDOLE_VERSION is the one compiled against.
FARANDOLE_API const char* version();

}  // namespace farandole
