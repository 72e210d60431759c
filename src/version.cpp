// SPDX-License-Identifier: Apache-2.0
#include "farandole/version.h"

namespace farandole {

const char* version() { return FARANDOLE_VERSION; }

}  // namespace farandole
