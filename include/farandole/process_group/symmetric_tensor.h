// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

/// An uninitialized contiguous tensor in memory that all ranks of `group` map: collectives on it,
/// or on contiguous parts of it at the same place on every rank, copy nothing in or out. Each rank
/// has its own; collective, with the same sizes and dtype on every rank. It may be let go in any
/// order, also after the group.
///
/// Throws InvalidArgument (the group's backend is not farandole, a size is negative), MismatchError
/// (the ranks ask for different sizes), SystemError (a rank has no memory left).
/// Threads: any. Fork: a child may read it.
FARANDOLE_API at::Tensor symmetric_empty(at::IntArrayRef sizes, at::ScalarType dtype = at::kFloat,
                                         const Group& group = {});

}  // namespace farandole
