// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// Who this rank is and where it meets the others.
struct Rendezvous {
  int rank;
  int world_size;
  c10::intrusive_ptr<c10d::Store> store;
};

/// Carries out InitOptions. Rank 0 may serve the store; the others wait for it up to the timeout.
FARANDOLE_API Rendezvous meet(const InitOptions& options);

}  // namespace farandole
