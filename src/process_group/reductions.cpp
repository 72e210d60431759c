// SPDX-License-Identifier: Apache-2.0
// The collectives of ProcessGroupFarandole that compute.
#include "process_group/flat_tensor.h"
#include "process_group/process_group_private.h"
#include "process_group/reduce_op.h"

namespace farandole {
namespace {

/// Sums (or so) `tensor` in place over the ranks.
void all_reduce_tensor(comm::Communicator& communicator, const at::Tensor& tensor,
                       const Reduction& reduction, const comm::CollectiveOptions& options) {
  const at::Tensor flat = flat_input(tensor);
  const at::Tensor from = reduction.prepared(flat, communicator);
  const Wire wire = reduced_wire_of(flat);
  communicator.all_reduce(from.const_data_ptr(), flat.mutable_data_ptr(), wire.count, wire.dtype,
                          reduction.op, reduction.with_factor(options, communicator));
  store_flat(flat, tensor);
}

/// Rank r's part of the reduction of flat `input` goes to `output`.
void reduce_scatter_flat(comm::Communicator& communicator, const at::Tensor& output,
                         const at::Tensor& flat, const Reduction& reduction,
                         const comm::CollectiveOptions& options) {
  const at::Tensor flat_out = flat_output(output);
  const Wire wire = reduced_wire_of(flat_out);
  const auto own_part = static_cast<size_t>(communicator.rank() * flat_out.numel());
  const at::Tensor from = apart_from(reduction.prepared(flat, communicator), flat_out, own_part);
  communicator.reduce_scatter(from.const_data_ptr(), flat_out.mutable_data_ptr(), wire.count,
                              wire.dtype, reduction.op,
                              reduction.with_factor(options, communicator));
  store_flat(flat_out, output);
}

}  // namespace

ProcessGroupFarandole::Work ProcessGroupFarandole::allreduce(Tensors& tensors,
                                                             const c10d::AllreduceOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::ALLREDUCE, "all_reduce",
                                        "farandole:all_reduce"};
  if (tensors.size() == 1 && tensors.front().defined() && tensors.front().is_sparse()) {
    return allreduce_sparse(tensors, opts);
  }
  const Caller by = caller(kOperation);
  check_single_output(by, tensors);
  const at::Tensor& tensor = tensors.front();
  const Reduction reduction = reduction_of(by, opts.reduceOp, tensor);
  return launch({kOperation, tensors, opts.asyncOp, opts.timeout, Cost{1, 3 * bytes_of(tensor)},
                 tensor.device()},
                [tensor, reduction](comm::Communicator& communicator, const auto& options) {
                  all_reduce_tensor(communicator, tensor, reduction, options);
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::allreduce_coalesced(
    Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::ALLREDUCE_COALESCED, "all_reduce_coalesced",
                                        "farandole:all_reduce_coalesced"};
  const Caller by = caller(kOperation);
  check_same_dtype(by, tensors);
  for (const at::Tensor& tensor : tensors) check_output(by, tensor);
  const Reduction reduction = reduction_of(by, opts.reduceOp, tensors.front());
  return launch({kOperation, tensors, opts.asyncOp, opts.timeout, Cost{1, 3 * bytes_of(tensors)},
                 tensors.front().device()},
                [tensors, reduction](comm::Communicator& communicator, const auto& options) {
                  const at::Tensor joined = joined_input(tensors);
                  all_reduce_tensor(communicator, joined, reduction, options);
                  store_joined(joined, tensors);
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::reduce(Tensors& tensors,
                                                          const c10d::ReduceOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::REDUCE, "reduce", "farandole:reduce"};
  const Caller by = caller(kOperation);
  check_single_output(by, tensors);
  check_root(by, opts.rootRank, opts.rootTensor);
  const at::Tensor& tensor = tensors.front();
  const Reduction reduction = reduction_of(by, opts.reduceOp, tensor);
  const int root = static_cast<int>(opts.rootRank);
  return launch({kOperation, tensors, opts.asyncOp, opts.timeout,
                 Cost{1, bytes_of(tensor) * (2 + size_)}, tensor.device()},
                [tensor, reduction, root](comm::Communicator& communicator, const auto& options) {
                  const at::Tensor flat = flat_input(tensor);
                  const at::Tensor from = reduction.prepared(flat, communicator);
                  const Wire wire = reduced_wire_of(flat);
                  const bool is_root = communicator.rank() == root;
                  communicator.reduce(from.const_data_ptr(),
                                      is_root ? flat.mutable_data_ptr() : nullptr, wire.count,
                                      wire.dtype, reduction.op, root,
                                      reduction.with_factor(options, communicator));
                  if (is_root) store_flat(flat, tensor);
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::reduce_scatter(
    Tensors& outputs, std::vector<Tensors>& inputs, const c10d::ReduceScatterOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::REDUCE_SCATTER, "reduce_scatter",
                                        "farandole:reduce_scatter"};
  const Caller by = caller(kOperation);
  check_single_output(by, outputs);
  check_single_list(by, inputs);
  const at::Tensor& output = outputs.front();
  const Tensors& parts = inputs.front();
  check_one_per_rank(by, "input", parts, output);
  const Reduction reduction = reduction_of(by, opts.reduceOp, output);
  return launch({kOperation, outputs, opts.asyncOp, opts.timeout,
                 Cost{1, 2 * bytes_of(parts) + bytes_of(output)}, output.device()},
                [output, parts, reduction](comm::Communicator& communicator, const auto& options) {
                  reduce_scatter_flat(communicator, output, joined_input(parts), reduction,
                                      options);
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::_reduce_scatter_base(
    at::Tensor& output, at::Tensor& input, const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupFarandole::Work ProcessGroupFarandole::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::_REDUCE_SCATTER_BASE, "reduce_scatter_tensor",
                                        "farandole:reduce_scatter_tensor"};
  const Caller by = caller(kOperation);
  check_pairs(by, outputs, inputs);
  std::vector<Reduction> reductions;
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_tensor(by, inputs[i]);
    check_output(by, outputs[i]);
    check_world_times(by, "input", inputs[i], "output", outputs[i]);
    reductions.push_back(reduction_of(by, opts.reduceOp, outputs[i]));
  }
  const Cost cost{static_cast<double>(inputs.size()), 2 * bytes_of(inputs) + bytes_of(outputs)};
  return launch(
      {kOperation, outputs, opts.asyncOp, opts.timeout, cost, outputs.front().device()},
      [outputs, inputs, reductions](comm::Communicator& communicator, const auto& options) {
        for (size_t i = 0; i < outputs.size(); ++i) {
          reduce_scatter_flat(communicator, outputs[i], flat_input(inputs[i]), reductions[i],
                              options);
        }
      });
}

}  // namespace farandole
