// SPDX-License-Identifier: Apache-2.0
// all_to_all of ProcessGroupFarandole: one tensor or a list, equal or uneven parts.
#include <algorithm>
#include <numeric>
#include <string>

#include "farandole/error.h"
#include "process_group/data_type.h"
#include "process_group/flat_tensor.h"
#include "process_group/process_group_private.h"

namespace farandole {
namespace {

using Counts = std::vector<size_t>;

void all_to_all_flat(comm::Communicator& communicator, const at::Tensor& output,
                     const at::Tensor& flat, const comm::CollectiveOptions& options) {
  const at::Tensor from = apart_from(flat, output, kNeverInPlace);
  const Wire wire = wire_of(from);
  communicator.all_to_all(from.const_data_ptr(), output.mutable_data_ptr(),
                          wire.count / static_cast<size_t>(communicator.world_size()), wire.dtype,
                          options);
}

/// `send` and `receive` count elements of the tensors, block by block.
void all_to_all_v_flat(comm::Communicator& communicator, const at::Tensor& output,
                       const at::Tensor& flat, Counts send, Counts receive,
                       const comm::CollectiveOptions& options) {
  const at::Tensor from = apart_from(flat, output, kNeverInPlace);
  const auto dtype = data_type_of(from.scalar_type());
  if (!dtype) {  // sent as bytes
    for (size_t& count : send) count *= from.element_size();
    for (size_t& count : receive) count *= from.element_size();
  }
  communicator.all_to_all_v(from.const_data_ptr(), send.data(), output.mutable_data_ptr(),
                            receive.data(), dtype.value_or(comm::DataType::kUInt8), options);
}

Counts counts_of(const std::vector<at::Tensor>& tensors) {
  Counts counts;
  for (const at::Tensor& tensor : tensors) counts.push_back(static_cast<size_t>(tensor.numel()));
  return counts;
}

/// Elements of each block of `tensor`, whose rows (dimension 0) `splits` divides; equal blocks if
/// it is empty.
Counts counts_of(const Caller& caller, const char* what, const at::Tensor& tensor,
                 const std::vector<int64_t>& splits) {
  const auto world = static_cast<size_t>(caller.world_size);
  const int64_t rows = tensor.dim() == 0 ? 1 : tensor.size(0);
  const int64_t sum = std::accumulate(splits.begin(), splits.end(), int64_t{0});
  const bool fits =
      splits.empty() ? rows % caller.world_size == 0 : splits.size() == world && sum == rows;
  const auto is_negative = [](int64_t split) { return split < 0; };
  if (!fits || std::any_of(splits.begin(), splits.end(), is_negative)) {
    throw InvalidArgument("split-sizes",
                          caller.describe() + " got " + what + " splits of " + std::to_string(sum) +
                              " rows in " + std::to_string(splits.size()) +
                              " parts for a tensor of " + std::to_string(rows) + " rows.",
                          "there must be either one split for each of the " +
                              std::to_string(world) +
                              " ranks, or none for equal parts, and the splits must add up to the "
                              "tensor's first dimension.",
                          "pass splits that add up to the first dimension of the tensor.");
  }
  int64_t row_elements = 1;
  for (int64_t i = 1; i < tensor.dim(); ++i) row_elements *= tensor.size(i);
  Counts counts;
  for (size_t i = 0; i < world; ++i) {
    const int64_t split = splits.empty() ? rows / caller.world_size : splits[i];
    counts.push_back(static_cast<size_t>(split * row_elements));
  }
  return counts;
}

void check_same_type(const Caller& caller, const at::Tensor& output, const at::Tensor& input) {
  if (output.scalar_type() == input.scalar_type()) return;
  throw InvalidArgument(
      "unequal-dtypes",
      caller.describe() + " got an output of type " + c10::toString(output.scalar_type()) +
          " for an input of type " + c10::toString(input.scalar_type()) + ".",
      "elements travel as they are; nothing casts them.", "cast one of them first.");
}

}  // namespace

ProcessGroupFarandole::Work ProcessGroupFarandole::alltoall_base(
    at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
    std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::ALLTOALL_BASE, "all_to_all_single",
                                        "farandole:all_to_all_single"};
  const Caller by = caller(kOperation);
  check_tensor(by, input);
  check_output(by, output);
  const Cost cost{1, bytes_of(input) + bytes_of(output)};
  // As with gloo, all ranks give splits or none does.
  if (output_splits.empty() && input_splits.empty()) {
    check_equal_parts(by, output, input);
    return launch({kOperation, {output}, opts.asyncOp, opts.timeout, cost, output.device()},
                  [output, input](comm::Communicator& communicator, const auto& options) {
                    const at::Tensor flat = flat_output(output);
                    all_to_all_flat(communicator, flat, flat_input(input), options);
                    store_flat(flat, output);
                  });
  }
  check_same_type(by, output, input);
  Counts send = counts_of(by, "input", input, input_splits);
  Counts receive = counts_of(by, "output", output, output_splits);
  return launch(
      {kOperation, {output}, opts.asyncOp, opts.timeout, cost, output.device()},
      [output, input, send, receive](comm::Communicator& communicator, const auto& options) {
        const at::Tensor flat = flat_output(output);
        all_to_all_v_flat(communicator, flat, flat_input(input), send, receive, options);
        store_flat(flat, output);
      });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::alltoall(Tensors& outputs, Tensors& inputs,
                                                            const c10d::AllToAllOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::ALLTOALL, "all_to_all",
                                        "farandole:all_to_all"};
  const Caller by = caller(kOperation);
  check_same_dtype(by, inputs);
  check_same_dtype(by, outputs);
  check_same_type(by, outputs.front(), inputs.front());
  check_count_per_rank(by, "input", inputs);
  check_count_per_rank(by, "output", outputs);
  for (const at::Tensor& tensor : outputs) check_output(by, tensor);
  return launch({kOperation, outputs, opts.asyncOp, opts.timeout,
                 Cost{1, bytes_of(inputs) + bytes_of(outputs)}, outputs.front().device()},
                [outputs, inputs](comm::Communicator& communicator, const auto& options) {
                  const at::Tensor joined = joined_output(outputs);
                  all_to_all_v_flat(communicator, joined, joined_input(inputs), counts_of(inputs),
                                    counts_of(outputs), options);
                  store_joined(joined, outputs);
                });
}

}  // namespace farandole
