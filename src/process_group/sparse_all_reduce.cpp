// SPDX-License-Identifier: Apache-2.0
// all_reduce of sparse COO tensors: every rank gathers all indices and values and adds them up.
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <sstream>

#include "farandole/error.h"
#include "process_group/process_group_private.h"
#include "process_group/reduce_op.h"

namespace farandole {
namespace {

std::string sizes_text(const int64_t* sizes, int64_t dimensions) {
  std::ostringstream text;
  text << at::IntArrayRef(sizes, static_cast<size_t>(dimensions));
  return text.str();
}

/// `own` of every rank, stacked in rank order: [world_size, ...].
at::Tensor gathered(comm::Communicator& communicator, const at::Tensor& own,
                    const comm::CollectiveOptions& options) {
  std::vector<int64_t> sizes = own.sizes().vec();
  sizes.insert(sizes.begin(), communicator.world_size());
  const at::Tensor all = at::empty(sizes, own.options());
  const Wire wire = wire_of(own);
  communicator.all_gather(own.const_data_ptr(), all.mutable_data_ptr(), wire.count, wire.dtype,
                          options);
  return all;
}

/// The number of non-zeros of each rank. Throws MismatchError on every rank if shapes differ.
std::vector<int64_t> exchange_shapes(comm::Communicator& communicator, const at::Tensor& tensor,
                                     const comm::CollectiveOptions& options) {
  std::vector<int64_t> header{tensor._nnz(), tensor.sparse_dim()};
  header.insert(header.end(), tensor.sizes().begin(), tensor.sizes().end());
  const auto length = static_cast<int64_t>(header.size());
  const at::Tensor all =
      gathered(communicator, at::from_blob(header.data(), {length}, at::kLong), options);
  const int64_t* first = all.const_data_ptr<int64_t>();
  std::vector<int64_t> counts;
  for (int rank = 0; rank < communicator.world_size(); ++rank) {
    const int64_t* other = first + rank * length;
    counts.push_back(other[0]);
    if (std::equal(first + 1, first + length, other + 1)) continue;
    throw MismatchError(
        "sparse-shapes",
        "all_reduce of sparse tensors in group '" + communicator.name() + "': rank 0 has sizes " +
            sizes_text(first + 2, length - 2) + " with " + std::to_string(first[1]) +
            " sparse dimensions, rank " + std::to_string(rank) + " " +
            sizes_text(other + 2, length - 2) + " with " + std::to_string(other[1]) + ".",
        "the tensors of all ranks must have the same shape.",
        "pass tensors of the same size and number of sparse dimensions.", {{rank}, "all_reduce"});
  }
  return counts;
}

/// `tensor`, whose first dimension holds this rank's non-zeros, of all ranks one after the other.
at::Tensor concatenated(comm::Communicator& communicator, const at::Tensor& tensor,
                        const std::vector<int64_t>& counts,
                        const comm::CollectiveOptions& options) {
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  std::vector<int64_t> sizes = tensor.sizes().vec();
  sizes[0] = most;
  const at::Tensor padded = at::zeros(sizes, tensor.options());
  padded.narrow(0, 0, tensor.size(0)).copy_(tensor);
  const at::Tensor all = gathered(communicator, padded, options);
  std::vector<at::Tensor> parts;
  for (size_t rank = 0; rank < counts.size(); ++rank) {
    parts.push_back(all.select(0, static_cast<int64_t>(rank)).narrow(0, 0, counts[rank]));
  }
  return at::cat(parts);
}

/// Sums in rank order, of half types in float32 as comm does; so every rank gets the same bits.
at::Tensor sum_of_all(comm::Communicator& communicator, const at::Tensor& tensor, bool average,
                      const comm::CollectiveOptions& options) {
  const std::vector<int64_t> counts = exchange_shapes(communicator, tensor, options);
  const at::Tensor indices =
      concatenated(communicator, tensor._indices().t().contiguous(), counts, options);
  at::Tensor values = concatenated(communicator, tensor._values().contiguous(), counts, options);
  const at::ScalarType type = values.scalar_type();
  if (at::isReducedFloatingType(type)) values = values.to(at::kFloat);
  const at::Tensor sum =
      at::_sparse_coo_tensor_unsafe(indices.t().contiguous(), values, tensor.sizes()).coalesce();
  if (average) {
    const bool integral = at::isIntegralType(type, /*includeBool=*/false);
    if (integral) {
      sum._values().div_(communicator.world_size(), "trunc");
    } else {
      sum._values().div_(communicator.world_size());
    }
  }
  return sum.to(type);
}

void check_sparse(const Caller& caller, const std::vector<at::Tensor>& tensors,
                  const c10d::ReduceOp& op) {
  if (tensors.size() != 1 || !tensors.front().defined() || !tensors.front().is_sparse()) {
    throw InvalidArgument("sparse-coo", caller.describe() + " requires one sparse COO tensor.",
                          "it gathers the indices and values of a sparse tensor.",
                          "use all_reduce() for tensors of other layouts.");
  }
  if (op.op_ == c10d::ReduceOp::SUM || op.op_ == c10d::ReduceOp::AVG) return;
  throw NotSupported(
      "sparse-reduction", caller.describe() + " can only reduce sparse tensors with SUM and AVG.",
      "other reductions have no neutral value for elements that a rank does not have.",
      "pass tensor.to_dense().");
}

}  // namespace

ProcessGroupFarandole::Work ProcessGroupFarandole::allreduce_sparse(
    Tensors& tensors, const c10d::AllreduceOptions& opts) {
  static constexpr Operation kOperation{c10d::OpType::_ALLREDUCE_SPARSE, "all_reduce_sparse",
                                        "farandole:all_reduce_sparse"};
  const Caller by = caller(kOperation);
  check_sparse(by, tensors, opts.reduceOp);
  const at::Tensor& tensor = tensors.front();
  check_host_tensor(by, tensor._values());
  reduction_of(by, opts.reduceOp, tensor._values());
  const bool average = opts.reduceOp.op_ == c10d::ReduceOp::AVG;
  // Shapes, indices and values are gathered; the other ranks' are taken to be as many.
  const double own_bytes = bytes_of(tensor._indices()) + bytes_of(tensor._values());
  const Cost cost{3, own_bytes * (1 + size_)};
  return launch({kOperation, tensors, opts.asyncOp, opts.timeout, cost, tensor.device()},
                [tensor, average](comm::Communicator& communicator, const auto& options) {
                  const at::Tensor own = tensor.is_coalesced() ? tensor : tensor.coalesce();
                  const at::Tensor sum = sum_of_all(communicator, own, average, options);
                  at::Tensor target = tensor;
                  target.copy_(sum);
                });
}

}  // namespace farandole
