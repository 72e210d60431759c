// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/checkpoint_writer.h"

#include <c10/core/GradMode.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/folder_lock.h"
#include "checkpoint/new_memory.h"
#include "checkpoint/save_job.h"
#include "checkpoint/store_exchange.h"
#include "comm/fork_guard.h"
#include "comm/start_thread.h"
#include "farandole/comm/communicator.h"
#include "farandole/ddp/replica_group.h"
#include "farandole/error.h"
#include "farandole/process_group/process_group.h"
#include "log.h"

namespace farandole {

using checkpoint::SaveJob;

namespace {

/// Slices in the staging buffer begin at such a multiple, as vector loads want it.
constexpr int64_t kAlignment = 64;

void check_slices(const std::vector<TensorSlice>& slices) {
  std::set<std::string> keys;
  for (const TensorSlice& slice : slices) {
    if (slice.key == "__metadata__") {
      throw InvalidArgument("checkpoint-reserved-key",
                            "the checkpoint got a tensor with the name '" + slice.key + "'.",
                            "safetensors files use that name for something else.",
                            "give it another name.");
    }
    const bool is_flat = slice.elements.defined() && slice.elements.dim() == 1 &&
                         slice.elements.is_contiguous() &&
                         slice.shape.size() == slice.strides.size();
    if (is_flat && keys.insert(slice.key).second) continue;
    throw InvalidArgument(
        "checkpoint-slice", "save() got the slice '" + slice.key + "' twice, or not flat.",
        "each key has one slice on a rank: a contiguous tensor of one dimension, with the shape "
        "and the strides of the whole tensor.",
        "join the slices of a key, and flatten them.");
  }
}

void check_name(const std::string& name) {
  const bool is_good = name.find('/') == std::string::npos && name != "." && name != ".." &&
                       name.rfind("tmp-", 0) != 0 && name != "latest";
  if (is_good) return;
  throw InvalidArgument("checkpoint-name", "save() got the name '" + name + "'.",
                        "it becomes the name of a folder, and 'latest' and 'tmp-...' have another "
                        "meaning.",
                        "pass a name without '/', as 'step-00001000', or none.");
}

std::string numbered(int64_t number) {
  char name[32];
  std::snprintf(name, sizeof(name), "save-%08lld", static_cast<long long>(number));
  return name;
}

/// By which the ranks' threads tell each other.
void check_store(c10d::ProcessGroup& group) {
  if (group.getStore()) return;
  throw InvalidArgument("checkpoint-store",
                        "an asynchronous save was asked for over a group without a store.",
                        "its threads tell each other through the store that they have written.",
                        "make the group with init_process_group(), or save synchronously.");
}

/// Below what trains: the lowest share of the disk and of the CPU, but one. A thread of
/// IOPRIO_CLASS_IDLE writes nothing while others always do, until the group's timeout.
void give_way() {
  constexpr int kOfProcess = 1;
  constexpr int kBestEffort = 2 << 13;
  constexpr int kLastInClass = 7;
  ::syscall(SYS_ioprio_set, kOfProcess, 0, kBestEffort | kLastInClass);
  constexpr int kLowest = 19;
  [[maybe_unused]] const int nice = ::nice(kLowest);
}

/// Throws PeerFailure if the process of a rank has ended, also after the program has destroyed the
/// group: it keeps the communicator of the CPU. Empty over another backend.
std::function<void()> watch_of(const ReplicaGroup& ranks) {
  const auto own = ProcessGroupFarandole::of(*ranks.group(), c10::DeviceType::CPU);
  const auto communicator = own ? own->communicator(c10::DeviceType::CPU) : nullptr;
  return [communicator] {
    if (communicator) communicator->check_alive();
  };
}

}  // namespace

struct CheckpointWriter::Impl {
  Impl(std::string folder, const Group& group)
      : root(std::move(folder)), ranks(group, "checkpoint") {}

  SaveJob begin(const std::vector<TensorSlice>& slices, const std::string& values,
                const SaveOptions& options);
  void stage(std::vector<TensorSlice>& slices);
  void start(SaveJob job);

  const std::string root;
  const ReplicaGroup ranks;
  const comm::ForkGuard creator;
  std::shared_ptr<checkpoint::FolderLock> lock;  ///< of rank 0, since its first save there
  at::Tensor staging;                            ///< bytes

  std::thread thread;  ///< of the save that is under way
  std::shared_ptr<PendingCheckpoint::Outcome> last;
};

/// Rank 0 makes the folder. All ranks begin, or none.
SaveJob CheckpointWriter::Impl::begin(const std::vector<TensorSlice>& slices,
                                      const std::string& values, const SaveOptions& options) {
  SaveJob job;
  job.root = root;
  job.name = options.name;
  job.keep = options.keep;
  job.rank = ranks.rank();
  job.world_size = ranks.world_size();
  job.slices = slices;
  job.values = values;
  std::string error;
  std::string made;
  try {
    check_name(options.name);
    check_slices(slices);
    if (options.asynchronous) check_store(*ranks.of_program());
    if (job.rank == 0) {
      if (!lock || !lock->is_in(root)) lock = checkpoint::FolderLock::of(root);
      // While it holds the folder, no other numbers saves there.
      const bool is_known = lock->is_held() && lock->last_number > 0;
      job.number = is_known ? lock->last_number + 1 : checkpoint::next_number(root);
      const std::string name = options.name.empty() ? numbered(job.number) : options.name;
      made = std::to_string(job.number) + "\n" + checkpoint::make_temporary(root, name);
      lock->last_number = job.number;
      job.lock = lock;
    }
  } catch (const std::exception& met) {
    error = met.what();
  }
  const std::vector<std::string> errors = ranks.all_gather(error);
  const std::vector<std::string> folders = ranks.all_gather(made);
  const size_t end = folders[0].find('\n');
  if (end != std::string::npos) job.temporary = folders[0].substr(end + 1);
  try {
    checkpoint::throw_first(errors, job.rank, "save_checkpoint()");
  } catch (...) {
    if (job.rank == 0 && !made.empty()) checkpoint::remove_folder(job.temporary);
    throw;
  }
  job.number = std::stoll(folders[0].substr(0, end));
  if (job.name.empty()) job.name = numbered(job.number);
  return job;
}

/// Copies the slices to the staging buffer, which grows to what a save needs and stays.
void CheckpointWriter::Impl::stage(std::vector<TensorSlice>& slices) {
  int64_t bytes = 0;
  for (const TensorSlice& slice : slices) {
    bytes +=
        (static_cast<int64_t>(slice.elements.nbytes()) + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (!staging.defined() || staging.numel() < bytes) {
    staging.reset();
    staging = checkpoint::new_memory(bytes, at::kByte);
  }
  int64_t at = 0;
  for (TensorSlice& slice : slices) {
    const auto own = static_cast<int64_t>(slice.elements.nbytes());
    const at::Tensor copy = staging.narrow(0, at, own).view(slice.elements.scalar_type());
    copy.copy_(slice.elements);
    slice.elements = copy;
    at += (own + kAlignment - 1) / kAlignment * kAlignment;
  }
}

void CheckpointWriter::Impl::start(SaveJob job) {
  // Below a name that no other save has: the store of torchrun's agent outlives the ranks, and has
  // what those wrote who were killed.
  checkpoint::StoreExchange exchange(ranks.of_program()->getStore(),
                                     "farandole/checkpoint/" + job.temporary + "/", job.rank,
                                     job.world_size, ranks.timeout(), watch_of(ranks));
  last = std::make_shared<PendingCheckpoint::Outcome>();
  auto save = [outcome = last, job = std::move(job), exchange]() mutable {
    std::exception_ptr met;
    try {
      job.run([&](const std::string& own) { return exchange.all_gather(own); });
    } catch (...) {
      met = std::current_exception();
      if (job.rank == 0) checkpoint::remove_folder(job.temporary);
    }
    exchange.leave();
    if (met) return outcome->folder.set_exception(met);
    outcome->folder.set_value(job.root + "/" + job.name);
  };
  try {
    thread = comm::start_thread("farandole save", "an asynchronous save", [save]() mutable {
      give_way();
      save();
    });
  } catch (const SystemError& error) {  // the threads of the other ranks wait for this one's part
    log(LogLevel::kWarning, std::string("training waits for this save: ") + error.what());
    save();
  }
}

CheckpointWriter::CheckpointWriter(std::string folder, const Group& group)
    : impl_(std::make_unique<Impl>(std::move(folder), group)) {}

CheckpointWriter::~CheckpointWriter() {
  if (!impl_->creator.in_creator()) {  // a forked child has not the thread that it would wait for
    static_cast<void>(new std::thread(std::move(impl_->thread)));
    return;
  }
  try {
    wait();
  } catch (const std::exception& error) {
    log(LogLevel::kError, error.what());
  }
}

PendingCheckpoint CheckpointWriter::save(const std::vector<TensorSlice>& slices,
                                         const std::string& values, const SaveOptions& options) {
  const c10::NoGradGuard no_grad;
  std::string before;
  try {
    wait();
  } catch (const std::exception& error) {
    before = error.what();
  }
  agree("save_checkpoint()", before);
  SaveJob job = impl_->begin(slices, values, options);
  if (options.asynchronous) {
    try {
      impl_->stage(job.slices);
    } catch (const std::exception& error) {
      job.failed = error.what();
    }
    impl_->start(std::move(job));
    return PendingCheckpoint(impl_->last);
  }
  job.run([&](const std::string& own) { return impl_->ranks.all_gather(own); });
  impl_->last = std::make_shared<PendingCheckpoint::Outcome>();
  impl_->last->folder.set_value(job.root + "/" + job.name);
  return PendingCheckpoint(impl_->last);
}

void CheckpointWriter::wait() {
  if (!impl_->creator.in_creator()) return;
  if (impl_->thread.joinable()) impl_->thread.join();
  if (impl_->last && !impl_->last->was_reported) PendingCheckpoint(impl_->last).wait();
}

int CheckpointWriter::rank() const { return impl_->ranks.rank(); }
int CheckpointWriter::world_size() const { return impl_->ranks.world_size(); }

void CheckpointWriter::agree(const std::string& call, const std::string& error) const {
  checkpoint::throw_first(impl_->ranks.all_gather(error), rank(), call);
}

std::vector<std::string> CheckpointWriter::all_gather(const std::string& text) const {
  return impl_->ranks.all_gather(text);
}

}  // namespace farandole
