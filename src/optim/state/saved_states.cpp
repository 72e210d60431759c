// SPDX-License-Identifier: Apache-2.0
#include "optim/state/saved_states.h"

namespace farandole {

SavedStates::~SavedStates() = default;

}  // namespace farandole
