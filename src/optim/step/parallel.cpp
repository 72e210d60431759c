// SPDX-License-Identifier: Apache-2.0
#include "optim/step/parallel.h"

#include <ATen/Parallel.h>
#include <ATen/TensorIterator.h>
#include <ATen/ops/empty.h>

namespace farandole {

void run_parallel(int64_t count, int64_t grain, c10::function_ref<void(int64_t, int64_t)> work) {
  if (count <= grain || at::get_num_threads() == 1) return work(0, count);
  // One byte for each index. The bytes are never read; their addresses give the indices.
  const at::Tensor bytes = at::empty({count}, at::TensorOptions(at::kCPU).dtype(at::kByte));
  const auto* const first = static_cast<const char*>(bytes.const_data_ptr());
  at::TensorIterator indices = at::TensorIteratorConfig()
                                   .add_output(bytes)
                                   .resize_outputs(false)
                                   .declare_static_shape(bytes.sizes())
                                   .check_all_same_dtype(false)
                                   .build();
  indices.for_each(
      [&](char** data, const int64_t* strides, int64_t ranged, int64_t rows) {
        for (int64_t row = 0; row < rows; ++row) {
          const int64_t begin = data[0] + row * strides[1] - first;
          work(begin, begin + ranged);
        }
      },
      grain);
}

}  // namespace farandole
