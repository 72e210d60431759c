// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#ifdef C10D_BACKEND_HAS_WINDOW

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "farandole/comm/signals.h"
#include "farandole/comm/symmetric_memory.h"
#include "process_group/argument_checks.h"
#include "process_group/group_communicators.h"

namespace farandole {

/// One-sided writes into tensors of the peers, with signals that say when they are there.
///
/// The tensor lies in symmetric memory of the group (symmetric_empty()), which every rank maps: a
/// put() is one copy into it, and map_remote_tensor() the memory itself. Ranks may register tensors
/// of different shapes and dtypes, or parts of one, all in the same allocation.
///
/// Order. What a rank put before signal() is there for the peer whose wait_signal() took that
/// signal; each wait takes one, and a put alone gives none. Synchronous calls run at once on the
/// calling thread; asynchronous ones of a group run one after the other on a thread of their own,
/// as on a stream: put before signal is in order, but a signal after a wait_signal waits with it.
/// Between the two only Work::wait() makes an order.
///
/// A call after the group has ended or has been reconfigured throws AbortedError.
/// Threads: any; tensor_register() and tensor_deregister() are collectives and need the window for
/// themselves. Destruction never communicates.
class WindowFarandole final : public c10d::Window {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;

  /// Collective.
  explicit WindowFarandole(const std::shared_ptr<GroupCommunicators>& communicators);
  ~WindowFarandole() override;

  /// Collective. A tensor that lies elsewhere is an InvalidArgument here and a MismatchError on the
  /// ranks whose tensors could be used; nothing is registered then. The memory stays mapped until
  /// tensor_deregister(); `owning` keeps the tensor itself, too.
  void tensor_register(const at::Tensor& tensor, bool owning) override;
  /// Collective: returns when every rank has come, with what it put and waited for done.
  void tensor_deregister() override;

  /// Copies `tensor` to the elements from `targetOffsetNelems` on of the tensor of `dstRank`. It
  /// waits for nobody, so that opts.timeout means nothing.
  Work put(const at::Tensor& tensor, int64_t dstRank, int64_t targetOffsetNelems, bool asyncOp,
           const c10d::PutOptions& opts) override;
  /// The tensor of `rank`, of its shape; it may be read and written, also after the window.
  at::Tensor map_remote_tensor(int64_t rank) override;
  Work signal(int64_t peerRank, bool asyncOp, const c10d::SignalOptions& opts) override;
  Work wait_signal(int64_t peerRank, bool asyncOp, const c10d::WaitSignalOptions& opts) override;
  /// UNIFIED: all ranks see one memory.
  c10d::WindowAttr get_attr(int64_t peerRank) override;

 private:
  struct Registration;

  std::shared_ptr<GroupCommunicators> communicators() const;
  Caller caller(const Operation& operation) const;
  const Registration& registration(const Caller& caller) const;
  std::vector<std::vector<int64_t>> exchange(const Operation& operation,
                                             const std::vector<int64_t>& own) const;

  const std::string group_;
  const int rank_;
  const int world_size_;
  const std::weak_ptr<GroupCommunicators>
      communicators_;  // a window must not hold a group that has ended
  std::shared_ptr<comm::Signals> signals_;
  std::unique_ptr<const Registration> registration_;  // null while nothing is registered
};

}  // namespace farandole

#endif
