// SPDX-License-Identifier: Apache-2.0
// The collectives of ProcessGroupFarandole that only move data, but for all_to_all.
#include "process_group/flat_tensor.h"
#include "process_group/process_group_private.h"

namespace farandole {
namespace {

/// `flat` of every rank, in rank order, goes to flat `output`.
void all_gather_flat(comm::Communicator& communicator, const at::Tensor& output,
                     const at::Tensor& flat, const comm::CollectiveOptions& options) {
  const size_t own_part = static_cast<size_t>(communicator.rank() * flat.numel());
  const at::Tensor from = apart_from(flat, output, own_part);
  const Wire wire = wire_of(from);
  communicator.all_gather(from.const_data_ptr(), output.mutable_data_ptr(), wire.count, wire.dtype,
                          options);
}

void all_gather_list(comm::Communicator& communicator, const std::vector<at::Tensor>& outputs,
                     const at::Tensor& input, const comm::CollectiveOptions& options) {
  const at::Tensor joined = joined_output(outputs);
  all_gather_flat(communicator, joined, flat_input(input), options);
  store_joined(joined, outputs);
}

}  // namespace

ProcessGroupFarandole::Work ProcessGroupFarandole::broadcast(Tensors& tensors,
                                                             const c10d::BroadcastOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::BROADCAST, "broadcast",
                                        "farandole:broadcast"};
  const Caller by = caller(kOperation);
  check_single_output(by, tensors);
  check_root(by, opts.rootRank, opts.rootTensor);
  const at::Tensor& tensor = tensors.front();
  const int root = static_cast<int>(opts.rootRank);
  return launch({kOperation, tensors, opts.asyncOp, opts.timeout, Cost{1, 2 * bytes_of(tensor)},
                 tensor.device()},
                [tensor, root](comm::Communicator& communicator, const auto& options) {
                  const bool is_root = communicator.rank() == root;
                  const at::Tensor flat = is_root ? flat_input(tensor) : flat_output(tensor);
                  const Wire wire = wire_of(flat);
                  communicator.broadcast(flat.mutable_data_ptr(), wire.count, wire.dtype, root,
                                         options);
                  if (!is_root) store_flat(flat, tensor);
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::allgather(std::vector<Tensors>& outputs,
                                                             Tensors& inputs,
                                                             const c10d::AllgatherOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::ALLGATHER, "all_gather",
                                        "farandole:all_gather"};
  const Caller by = caller(kOperation);
  check_single_input(by, inputs);
  check_single_list(by, outputs);
  const at::Tensor& input = inputs.front();
  const Tensors& parts = outputs.front();
  check_one_per_rank(by, "output", parts, input);
  for (const at::Tensor& part : parts) check_output(by, part);
  return launch({kOperation, parts, opts.asyncOp, opts.timeout,
                 Cost{1, bytes_of(input) + bytes_of(parts)}, input.device()},
                [parts, input](comm::Communicator& communicator, const auto& options) {
                  all_gather_list(communicator, parts, input, options);
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::_allgather_base(
    at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

ProcessGroupFarandole::Work ProcessGroupFarandole::allgather_coalesced(
    std::vector<Tensors>& output_lists, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::ALLGATHER_COALESCED, "all_gather_coalesced",
                                        "farandole:all_gather_coalesced"};
  const Caller by = caller(kOperation);
  check_lists_of_ranks(by, output_lists, inputs);
  // c10d hands over one list per rank; a collective fills one tensor per rank.
  std::vector<Tensors> parts_of_input(inputs.size());
  Tensors outputs;
  for (size_t i = 0; i < inputs.size(); ++i) {
    for (const Tensors& list : output_lists) parts_of_input[i].push_back(list[i]);
    check_tensor(by, inputs[i]);
    check_one_per_rank(by, "output", parts_of_input[i], inputs[i]);
    for (const at::Tensor& part : parts_of_input[i]) check_output(by, part);
    outputs.insert(outputs.end(), parts_of_input[i].begin(), parts_of_input[i].end());
  }
  const Cost cost{static_cast<double>(inputs.size()), bytes_of(inputs) + bytes_of(outputs)};
  return launch(
      {kOperation, std::move(outputs), opts.asyncOp, opts.timeout, cost, inputs.front().device()},
      [parts_of_input, inputs](comm::Communicator& communicator, const auto& options) {
        for (size_t i = 0; i < inputs.size(); ++i) {
          all_gather_list(communicator, parts_of_input[i], inputs[i], options);
        }
      });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::allgather_into_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::_ALLGATHER_BASE, "all_gather_into_tensor",
                                        "farandole:all_gather_into_tensor"};
  const Caller by = caller(kOperation);
  check_pairs(by, outputs, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) {
    check_tensor(by, inputs[i]);
    check_output(by, outputs[i]);
    check_world_times(by, "output", outputs[i], "input", inputs[i]);
  }
  const Cost cost{static_cast<double>(inputs.size()), bytes_of(inputs) + bytes_of(outputs)};
  return launch({kOperation, outputs, opts.asyncOp, opts.timeout, cost, inputs.front().device()},
                [outputs, inputs](comm::Communicator& communicator, const auto& options) {
                  for (size_t i = 0; i < outputs.size(); ++i) {
                    const at::Tensor flat = flat_output(outputs[i]);
                    all_gather_flat(communicator, flat, flat_input(inputs[i]), options);
                    store_flat(flat, outputs[i]);
                  }
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::gather(std::vector<Tensors>& outputs,
                                                          Tensors& inputs,
                                                          const c10d::GatherOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::GATHER, "gather", "farandole:gather"};
  const Caller by = caller(kOperation);
  check_single_input(by, inputs);
  check_root(by, opts.rootRank);
  const at::Tensor& input = inputs.front();
  const int root = static_cast<int>(opts.rootRank);
  Tensors parts;
  if (rank_ == root) {
    check_single_list(by, outputs);
    parts = outputs.front();
    check_one_per_rank(by, "output", parts, input);
    for (const at::Tensor& part : parts) check_output(by, part);
  } else {
    check_no_list(by, "output", outputs);
  }
  return launch({kOperation, parts, opts.asyncOp, opts.timeout,
                 Cost{1, bytes_of(input) * (1 + size_)}, input.device()},
                [parts, input, root](comm::Communicator& communicator, const auto& options) {
                  at::Tensor from = flat_input(input);
                  const Wire wire = wire_of(from);
                  at::Tensor joined;
                  if (!parts.empty()) {
                    joined = joined_output(parts);
                    from = apart_from(from, joined, static_cast<size_t>(root * from.numel()));
                  }
                  communicator.gather(from.const_data_ptr(),
                                      parts.empty() ? nullptr : joined.mutable_data_ptr(),
                                      wire.count, wire.dtype, root, options);
                  if (!parts.empty()) store_joined(joined, parts);
                });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::scatter(Tensors& outputs,
                                                           std::vector<Tensors>& inputs,
                                                           const c10d::ScatterOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::SCATTER, "scatter", "farandole:scatter"};
  const Caller by = caller(kOperation);
  check_single_output(by, outputs);
  check_root(by, opts.rootRank);
  const at::Tensor& output = outputs.front();
  const int root = static_cast<int>(opts.rootRank);
  Tensors parts;
  if (rank_ == root) {
    check_single_list(by, inputs);
    parts = inputs.front();
    check_one_per_rank(by, "input", parts, output);
  } else {
    check_no_list(by, "input", inputs);
  }
  return launch({kOperation, outputs, opts.asyncOp, opts.timeout,
                 Cost{1, bytes_of(output) * (1 + size_)}, output.device()},
                [parts, output, root](comm::Communicator& communicator, const auto& options) {
                  const at::Tensor flat = flat_output(output);
                  const Wire wire = wire_of(flat);
                  at::Tensor from;
                  if (!parts.empty()) from = apart_from(joined_input(parts), flat, kNeverInPlace);
                  communicator.scatter(parts.empty() ? nullptr : from.const_data_ptr(),
                                       flat.mutable_data_ptr(), wire.count, wire.dtype, root,
                                       options);
                  store_flat(flat, output);
                });
}

}  // namespace farandole
