// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/process_group/collectives.h"

namespace farandole {

/// How a group makes the mean of its ranks' tensors.
struct Average {
  double factor;      ///< on each rank's tensor beforehand
  c10d::ReduceOp op;  ///< of the all_reduce
};

/// Backend farandole divides the sum; others sum what is divided, as AVG is not known to all.
Average average_of(const Group& group, const at::Tensor& tensor);

/// Starts to make `tensor` the mean of all ranks'.
Work start_average(const Group& group, at::Tensor tensor);

}  // namespace farandole
