// SPDX-License-Identifier: Apache-2.0
#pragma once

// What the sources of ProcessGroupFarandole share.

#include "farandole/process_group/process_group.h"
#include "process_group/argument_checks.h"
#include "process_group/group_communicators.h"

namespace farandole {

inline Caller ProcessGroupFarandole::caller(const Operation& operation) const {
  return {operation.name, name_, rank_, size_};
}

/// The bytes of all elements.
inline double bytes_of(const at::Tensor& tensor) { return static_cast<double>(tensor.nbytes()); }
inline double bytes_of(const std::vector<at::Tensor>& tensors) {
  double bytes = 0;
  for (const at::Tensor& tensor : tensors) bytes += bytes_of(tensor);
  return bytes;
}

}  // namespace farandole
