// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "farandole/export.h"
#include "farandole/process_group/init.h"

namespace farandole {

// Collectives on plain tensors, by the same names in C++ and Python. Every rank of the group calls
// the same ones in the same order, with tensors of the same dtype and number of elements. Groups
// may be of any backend. Roots are counted within the group.
//
// Errors: InvalidArgument, NotSupported, and CommError and its kind from our own backend.
// Threads: any; with `async` the tensors must be left alone until the Work is done.

/// One collective; done already unless asked for with `async`.
using Work = c10::intrusive_ptr<c10d::Work>;

/// For collectives that compute.
struct ReductionOptions {
  c10d::ReduceOp op = c10d::ReduceOp::SUM;
  Group group = {};
  bool async = false;
};

/// For collectives that only move.
struct MoveOptions {
  Group group = {};
  bool async = false;
};

/// For all_to_all. Splits count rows of dimension 0 for each rank; all ranks give splits, or none
/// does for equal parts.
struct SplitOptions {
  Group group = {};
  bool async = false;
  std::vector<int64_t> output_splits = {};
  std::vector<int64_t> input_splits = {};
};

/// For send and recv: the receive takes the message with its tag.
struct TransferOptions {
  Group group = {};
  bool async = false;
  int tag = 0;
};

FARANDOLE_API int rank(const Group& group = {});
FARANDOLE_API int world_size(const Group& group = {});
/// This rank among those on its host, and how many they are. For groups of other backends: what the
/// launcher says, or InvalidArgument if it does not.
FARANDOLE_API int local_rank(const Group& group = {});
FARANDOLE_API int local_world_size(const Group& group = {});

/// `tensor` becomes the reduction of all ranks' tensors.
FARANDOLE_API Work all_reduce(const at::Tensor& tensor, const ReductionOptions& options = {});
/// `output` becomes this rank's part of the reduction of `input`, which holds world_size parts.
FARANDOLE_API Work reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                  const ReductionOptions& options = {});
/// `output`, world_size times as large as `input`, becomes all inputs in rank order.
FARANDOLE_API Work all_gather(const at::Tensor& output, const at::Tensor& input,
                              const MoveOptions& options = {});
/// `tensor` becomes that of `root`.
FARANDOLE_API Work broadcast(const at::Tensor& tensor, int root = 0,
                             const MoveOptions& options = {});
/// `tensor` of `root` becomes the reduction of all ranks' tensors; the others keep theirs.
FARANDOLE_API Work reduce(const at::Tensor& tensor, int root = 0,
                          const ReductionOptions& options = {});
/// As all_gather, on `root` alone; `output` is contiguous there and undefined elsewhere.
FARANDOLE_API Work gather(const at::Tensor& output, const at::Tensor& input, int root = 0,
                          const MoveOptions& options = {});
/// `output` becomes this rank's part of root's `input`, contiguous there and undefined elsewhere.
FARANDOLE_API Work scatter(const at::Tensor& output, const at::Tensor& input, int root = 0,
                           const MoveOptions& options = {});
/// Part p of `output` becomes this rank's part of rank p's `input`.
FARANDOLE_API Work all_to_all(const at::Tensor& output, const at::Tensor& input,
                              const SplitOptions& options = {});
/// Returns when every rank has entered.
FARANDOLE_API Work barrier(const MoveOptions& options = {});
/// As barrier(), with a timeout of its own (zero: the group's): rank 0's error names every rank
/// that did not arrive in time. With groups of other backends `wait_all_ranks` is what it is there.
FARANDOLE_API void monitored_barrier(std::chrono::milliseconds timeout = kNoTimeout,
                                     bool wait_all_ranks = false, const Group& group = {});

/// Sends `tensor` to rank `destination` of the group; done when the tensor may be changed.
FARANDOLE_API Work send(const at::Tensor& tensor, int destination,
                        const TransferOptions& options = {});
constexpr int kAnySource = -1;
/// Fills `tensor`, which has the sender's dtype and number of elements, with a message from rank
/// `source`, or from any; the Work's sourceRank() tells from whom.
FARANDOLE_API Work recv(const at::Tensor& tensor, int source = kAnySource,
                        const TransferOptions& options = {});

}  // namespace farandole
