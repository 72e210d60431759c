// SPDX-License-Identifier: Apache-2.0
#include "farandole/process_group/collectives.h"

#include <utility>

#include "farandole/error.h"
#include "farandole/process_group/process_group.h"
#include "process_group/launch.h"
#include "process_group/torch_compat.h"

namespace farandole {
namespace {

Group or_default(const Group& group) { return group ? group : default_group(); }

Work finish(Work work, bool async) {
  if (!async && work) work->wait();
  return work;
}

/// Checks `tensor`, which a collective fills. c10d's dispatcher passes a copy of a lazily
/// conjugated or negated tensor to the backend, so the result would be lost.
const at::Tensor& filled(const char* function, const at::Tensor& tensor) {
  if (!tensor.defined() || (!tensor.is_conj() && !tensor.is_neg())) return tensor;
  throw InvalidArgument("conjugated-output",
                        std::string(function) + "() cannot fill a conjugated or negated view.",
                        "the values in its memory differ from the values that it shows.",
                        "pass tensor.resolve_conj() or tensor.resolve_neg().");
}

Launch launch_or_throw(const char* function) {
  Launch launch = find_launch();
  if (launch.launcher != "alone") return launch;
  throw InvalidArgument("rank-unknown",
                        std::string(function) + "() does not know the answer for this group.",
                        "its backend is not farandole, and no launcher's variables are set.",
                        "start the script with torchrun, or use a group of backend farandole.");
}

/// The equal parts of contiguous `tensor`, one per rank.
std::vector<at::Tensor> parts_of(const char* function, const at::Tensor& tensor, int count) {
  if (tensor.defined() && tensor.is_contiguous() && tensor.numel() % count == 0) {
    return tensor.view({-1}).tensor_split(count);
  }
  throw InvalidArgument("root-tensor",
                        std::string(function) + "() on the root needs a contiguous tensor of " +
                            std::to_string(count) + " equal parts.",
                        !tensor.defined() ? "no tensor was passed."
                        : tensor.is_contiguous()
                            ? "the tensor has " + std::to_string(tensor.numel()) + " elements."
                            : "the tensor's elements are not in row-major order.",
                        "pass a tensor like one made by torch::empty({world_size, ...}).");
}

}  // namespace

int rank(const Group& group) { return or_default(group)->getRank(); }

int world_size(const Group& group) { return or_default(group)->getSize(); }

int local_rank(const Group& group) {
  if (const auto backend = ProcessGroupFarandole::of(*or_default(group)))
    return backend->topology().local_rank;
  return launch_or_throw("local_rank").local_rank;
}

int local_world_size(const Group& group) {
  if (const auto backend = ProcessGroupFarandole::of(*or_default(group))) {
    return backend->topology().local_world_size;
  }
  return launch_or_throw("local_world_size").local_world_size;
}

Work all_reduce(const at::Tensor& tensor, const ReductionOptions& options) {
  c10d::AllreduceOptions opts;
  opts.reduceOp = options.op;
  opts.asyncOp = options.async;
  std::vector<at::Tensor> tensors{filled("all_reduce", tensor)};
  return finish(or_default(options.group)->allreduce(tensors, opts), options.async);
}

Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                    const ReductionOptions& options) {
  c10d::ReduceScatterOptions opts;
  opts.reduceOp = options.op;
  opts.asyncOp = options.async;
  return finish(reduce_scatter_single(*or_default(options.group), filled("reduce_scatter", output),
                                      input, opts),
                options.async);
}

Work all_gather(const at::Tensor& output, const at::Tensor& input, const MoveOptions& options) {
  c10d::AllgatherOptions opts;
  opts.asyncOp = options.async;
  return finish(
      all_gather_single(*or_default(options.group), filled("all_gather", output), input, opts),
      options.async);
}

Work broadcast(const at::Tensor& tensor, int root, const MoveOptions& options) {
  c10d::BroadcastOptions opts;
  opts.rootRank = root;
  opts.asyncOp = options.async;
  std::vector<at::Tensor> tensors{filled("broadcast", tensor)};
  return finish(or_default(options.group)->broadcast(tensors, opts), options.async);
}

Work reduce(const at::Tensor& tensor, int root, const ReductionOptions& options) {
  c10d::ReduceOptions opts;
  opts.reduceOp = options.op;
  opts.rootRank = root;
  opts.asyncOp = options.async;
  std::vector<at::Tensor> tensors{filled("reduce", tensor)};
  return finish(or_default(options.group)->reduce(tensors, opts), options.async);
}

Work gather(const at::Tensor& output, const at::Tensor& input, int root,
            const MoveOptions& options) {
  const Group group = or_default(options.group);
  c10d::GatherOptions opts;
  opts.rootRank = root;
  opts.asyncOp = options.async;
  std::vector<std::vector<at::Tensor>> outputs;
  if (group->getRank() == root)
    outputs.push_back(parts_of("gather", filled("gather", output), group->getSize()));
  std::vector<at::Tensor> inputs{input};
  return finish(group->gather(outputs, inputs, opts), options.async);
}

Work scatter(const at::Tensor& output, const at::Tensor& input, int root,
             const MoveOptions& options) {
  const Group group = or_default(options.group);
  c10d::ScatterOptions opts;
  opts.rootRank = root;
  opts.asyncOp = options.async;
  std::vector<std::vector<at::Tensor>> inputs;
  if (group->getRank() == root) inputs.push_back(parts_of("scatter", input, group->getSize()));
  std::vector<at::Tensor> outputs{filled("scatter", output)};
  return finish(group->scatter(outputs, inputs, opts), options.async);
}

Work all_to_all(const at::Tensor& output, const at::Tensor& input, const SplitOptions& options) {
  c10d::AllToAllOptions opts;
  opts.asyncOp = options.async;
  return finish(all_to_all_single(*or_default(options.group), filled("all_to_all", output), input,
                                  options.output_splits, options.input_splits, opts),
                options.async);
}

Work barrier(const MoveOptions& options) {
  c10d::BarrierOptions opts;
  opts.asyncOp = options.async;
  opts.device = at::Device(at::kCPU);
  return finish(or_default(options.group)->barrier(opts), options.async);
}

void monitored_barrier(std::chrono::milliseconds timeout, bool wait_all_ranks, const Group& group) {
  c10d::BarrierOptions opts;
  opts.device = at::Device(at::kCPU);
  if (timeout > kNoTimeout) opts.timeout = timeout;
  or_default(group)->monitoredBarrier(opts, wait_all_ranks);
}

Work send(const at::Tensor& tensor, int destination, const TransferOptions& options) {
  std::vector<at::Tensor> tensors{tensor};
  return finish(or_default(options.group)->send(tensors, destination, options.tag), options.async);
}

Work recv(const at::Tensor& tensor, int source, const TransferOptions& options) {
  const Group group = or_default(options.group);
  std::vector<at::Tensor> tensors{filled("recv", tensor)};
  Work work = source == kAnySource ? group->recvAnysource(tensors, options.tag)
                                   : group->recv(tensors, source, options.tag);
  return finish(std::move(work), options.async);
}

}  // namespace farandole
