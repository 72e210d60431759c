// SPDX-License-Identifier: Apache-2.0
#include "ddp/hooks/average.h"

#include "farandole/process_group/process_group.h"

namespace farandole {

Average average_of(const Group& group, const at::Tensor& tensor) {
  if (ProcessGroupFarandole::of(*group, tensor.device().type())) return {1, c10d::ReduceOp::AVG};
  return {1.0 / group->getSize(), c10d::ReduceOp::SUM};
}

Work start_average(const Group& group, at::Tensor tensor) {
  const Average average = average_of(group, tensor);
  if (average.factor != 1) tensor.mul_(average.factor);
  return all_reduce(tensor, {average.op, group, /*async=*/true});
}

}  // namespace farandole
