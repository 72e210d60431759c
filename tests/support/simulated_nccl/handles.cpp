// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/handles.h"

#include <map>
#include <mutex>
#include <utility>

#include "support/simulated_nccl/misuse.h"

struct ncclComm {
  std::shared_ptr<farandole::sim::nccl::Communicator> communicator;  ///< null: gone
  std::string name;                                                  ///< of the rank
  std::string ended_by;                                              ///< a function
};

namespace farandole::sim::nccl {
namespace {

struct Handles {
  std::mutex mutex;
  std::map<ncclComm_t, std::unique_ptr<ncclComm>> all;  ///< guarded by mutex
};

Handles& handles() {
  static auto* made = new Handles;  // threads may use it while the process ends
  return *made;
}

}  // namespace

ncclComm_t make_handle(std::shared_ptr<Communicator> communicator) {
  auto handle = std::make_unique<ncclComm>();
  handle->name = communicator->name();
  handle->communicator = std::move(communicator);
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const ncclComm_t made = handle.get();
  handles().all[made] = std::move(handle);
  return made;
}

std::shared_ptr<Communicator> resolve(ncclComm_t handle, const std::string& function) {
  const std::lock_guard<std::mutex> lock(handles().mutex);
  const auto found = handles().all.find(handle);
  if (found == handles().all.end()) {
    throw Misuse(ncclInvalidArgument,
                 function +
                     " got a communicator that does not exist.\nwhy: no function has made "
                     "this ncclComm_t.\nfix: pass one that was made.");
  }
  const ncclComm& known = *found->second;
  if (known.communicator != nullptr) return known.communicator;
  throw Misuse(ncclInvalidArgument, known.name + " calls " + function +
                                        " on a communicator that is gone.\nwhy: " + known.ended_by +
                                        " has ended it.\nfix: use a communicator only before.");
}

void retire(ncclComm_t handle, const std::string& function) {
  std::shared_ptr<Communicator> last;  // freed without the lock
  const std::lock_guard<std::mutex> lock(handles().mutex);
  ncclComm& known = *handles().all.at(handle);
  known.ended_by = function;
  last.swap(known.communicator);
}

}  // namespace farandole::sim::nccl
