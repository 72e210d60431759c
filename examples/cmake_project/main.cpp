// SPDX-License-Identifier: Apache-2.0
// Averages a tensor over all ranks and checks the result. Alone it is a world of one rank; on two:
//   for rank in 0 1; do
//     RANK=$rank WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 build/example/average &
//   done; wait
#include <ATen/ATen.h>
#include <farandole/farandole.h>

#include <iostream>

int main() {
  farandole::init_process_group();
  const double rank = farandole::rank();
  const double world_size = farandole::world_size();

  const at::Tensor tensor = at::full({4}, rank);  // 0, 1, 2, ... on ranks 0, 1, 2, ...
  farandole::all_reduce(tensor, {c10d::ReduceOp::AVG});

  const bool right = at::equal(tensor, at::full({4}, (world_size - 1) / 2));
  std::cout << "rank " << rank << " of " << world_size << ": the average rank is "
            << tensor[0].item<double>() << (right ? "" : ", which is wrong") << std::endl;
  return right ? 0 : 1;
}
