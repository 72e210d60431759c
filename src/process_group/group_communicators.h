// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <utility>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/communicator.h"
#include "farandole/process_group/work.h"
#include "process_group/call.h"
#include "process_group/collective_queue.h"
#include "process_group/device/device_lane.h"
#include "process_group/hooks.h"
#include "process_group/time_estimator.h"
#include "process_group/transfers_in_flight.h"

namespace farandole {

/// What a barrier waits for on the devices of a group.
class DevicePoints {
 public:
  /// What `stream` was given so far.
  void add(const c10::Stream& stream);
  /// What `stream` has when wait() is called.
  void add_later(const c10::Stream& stream) { streams_.push_back(stream); }
  bool empty() const { return events_.empty() && streams_.empty(); }
  /// Makes the host wait.
  void wait();

 private:
  std::vector<c10::Event> events_;
  std::vector<c10::Stream> streams_;
};

/// One set of ranks and what they talk through: what a group has from its making until its end or
/// its next reconfigure(). That is a communicator on host memory, and a lane for each type of
/// accelerator, which is made through that communicator when it is first used.
///
/// Works and tasks share it with the group, so it lives until the last of them is done. Each call
/// runs on the calling thread or on the executor of a queue, or is put on the stream of a lane;
/// errors and completions are told to the hooks of the group.
/// Threads: any. Fork: in a child every launch throws CommError, and it must not be destroyed.
class GroupCommunicators : public std::enable_shared_from_this<GroupCommunicators> {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  /// The error that a group met first; it outlives this object.
  using FirstError = std::atomic<c10d::ErrorType>;

  /// What the ranks form with. `formation_timeout` of zero: `timeout`.
  struct Parts {
    std::string group;
    std::chrono::milliseconds timeout;
    std::chrono::milliseconds formation_timeout;
    std::shared_ptr<GroupHooks> hooks;
    std::shared_ptr<FirstError> error;
    comm::WhileForming while_forming;  ///< may be empty
  };
  /// Collective: meets `size` ranks in `store`. Throws TimeoutError naming those that did not
  /// arrive.
  static std::shared_ptr<GroupCommunicators> form(const c10::intrusive_ptr<c10d::Store>& store,
                                                  int rank, int size, const Parts& parts);

  const std::string& group() const { return parts_.group; }
  int rank() const { return host_->rank(); }
  /// The communicator on host memory.
  const std::shared_ptr<comm::Communicator>& host() const { return host_; }
  /// What tensors on devices of `type` travel through; null if nothing serves them, or not yet.
  std::shared_ptr<comm::Communicator> of(c10::DeviceType type) const;
  /// Makes what tensors on `device` travel through, unless it is there. Collective.
  void connect(c10::Device device);
  /// Memory for collectives on `device`. Collective, with the same size on all ranks. Its release
  /// waits for nobody. Throws SystemError on all ranks if one has none left.
  std::shared_ptr<comm::DeviceMemory> allocate(c10::Device device, size_t bytes);
  /// What the present streams of this thread and of the lanes were given so far, on the devices
  /// that the group works on, with what staged collectives before the barrier will give to them;
  /// besides on `device`, if it is an accelerator.
  DevicePoints points_on_devices(std::optional<c10::Device> device) const;
  /// False in a forked child.
  bool in_creator() const { return collectives_.in_creator(); }

  /// Runs `body` as a collective, in the order in which collectives are launched. A synchronous one
  /// runs on this thread if nothing is ahead of it, and throws its error; an asynchronous one runs
  /// on an executor, and its Work carries the error. One on an accelerator is enqueued at once.
  Work launch(Call call, Body body);
  /// As launch() for what only some ranks do and nobody counts. A synchronous one runs at once on
  /// this thread; asynchronous ones run in order on an executor of their own.
  Work launch_one_sided(Call call, Body body);
  /// A Work that is done and counts for nothing.
  Work finished(const Operation& operation, std::vector<at::Tensor> outputs) const;

  TimeEstimator& estimator() { return estimator_; }
  const std::shared_ptr<TransfersInFlight>& transfers() const { return transfers_; }
  /// Collectives launched so far.
  uint64_t launched() const { return collectives_.issued(); }
  /// `asked`, or the group's own; zero: the communicator's.
  std::chrono::milliseconds timeout_of(std::chrono::milliseconds asked) const;
  void set_timeout(std::chrono::milliseconds timeout);

  /// Keeps `failure` as the group's first error, if it is one of the group.
  void note_error(const std::exception_ptr& failure) const;
  /// Tells the completion hooks that `work` went well after `duration`.
  void note_completion(const WorkFarandole& work,
                       std::chrono::steady_clock::duration duration) const;
  bool wants_completions() const { return !parts_.hooks->completion.empty(); }

  /// Fails every call of the group, on all ranks, with `reason`.
  void abort(const std::string& reason);
  /// Fails what is pending for `reason` and ends the threads. Calls no abort hooks.
  void end(const std::string& reason);

 private:
  /// The abort hooks, called once before this object aborts. Whoever comes while they run
  /// waits until they have; a hook that aborts does not.
  struct AbortNotice {
    std::shared_ptr<GroupHooks> hooks;
    std::recursive_mutex mutex;
    bool given = false;  // guarded by mutex
    void give();
  };

  using Lane = std::shared_ptr<DeviceLane>;

  GroupCommunicators(Parts parts, std::shared_ptr<comm::Communicator> host,
                     std::chrono::milliseconds default_timeout,
                     std::shared_ptr<AbortNotice> notice);

  void remember_formation(const c10::intrusive_ptr<c10d::Store>& store,
                          const comm::CommunicatorOptions& options);
  Lane lane(c10::DeviceType type) const;
  std::vector<Lane> lanes() const;
  Lane lane_on(c10::Device device) const;
  Lane make_lane(c10::Device device);
  Lane make_direct_lane(DeviceLane::Parts parts);
  Lane make_staged_lane(DeviceLane::Parts parts);
  Work launch_on_device(Call& call, Body body);
  Work run_here(Call& call, const Body& body, uint64_t sequence);
  Work enqueue(bool one_sided, Call& call, Body body);
  uint64_t push_collective(CollectiveQueue::Task task);
  void note_failure(const std::exception_ptr& failure) const;

  const Parts parts_;
  const std::shared_ptr<comm::Communicator> host_;
  const std::chrono::milliseconds default_timeout_;  ///< of the communicators
  const std::shared_ptr<AbortNotice> notice_;        // shared with the communicators
  c10::intrusive_ptr<c10d::Store> store_;            // of form(); unchanged once it has formed
  comm::CommunicatorOptions device_options_;         // likewise
  mutable std::mutex lanes_mutex_;
  std::array<Lane, c10::COMPILE_TIME_MAX_DEVICE_TYPES> lanes_;  // guarded by lanes_mutex_; by type
  const std::shared_ptr<TransfersInFlight> transfers_ = std::make_shared<TransfersInFlight>();
  std::atomic<std::chrono::milliseconds> timeout_;
  TimeEstimator estimator_;
  CollectiveQueue collectives_;
  CollectiveQueue one_sided_;
};

}  // namespace farandole
