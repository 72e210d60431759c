// SPDX-License-Identifier: Apache-2.0
// Memory of nccl.h: allocation and registration.
#include <array>
#include <map>
#include <mutex>
#include <string>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_nccl/api.h"
#include "support/simulated_nccl/group.h"
#include "support/simulated_nccl/misuse.h"

namespace farandole::sim::nccl {
namespace {

/// A stream on which nothing runs: all streams may use the memory at once, and its release waits
/// for none, as in NCCL.
Stream& owner_on(int device) {
  static std::array<Stream*, kDeviceCount> streams = [] {
    std::array<Stream*, kDeviceCount> made{};
    for (int each = 0; each < kDeviceCount; ++each) {
      made[static_cast<size_t>(each)] = &new_stream(each);
    }
    return made;
  }();
  return *streams.at(static_cast<size_t>(device));
}

struct Registration {
  const void* data;
  std::string by;  ///< a rank
  Communicator* communicator;
  bool is_window;
};

/// What ncclMemAlloc has given, and what is registered.
class Memory {
 public:
  void* allocate(int device, size_t bytes) {
    void* data = sim::allocate(owner_on(device), bytes);
    const std::lock_guard<std::mutex> lock(mutex_);
    bytes_[data] = bytes;
    return data;
  }

  void release(void* data) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (const auto& each : registrations_) {
        if (each.second.data != data) continue;
        throw Misuse(ncclInvalidUsage, "ncclMemFree got memory that " + each.second.by +
                                           " has registered.\nwhy: NCCL still uses it.\nfix: "
                                           "deregister it before.");
      }
      if (bytes_.erase(data) == 0) {
        throw Misuse(ncclInvalidArgument,
                     "ncclMemFree got an address that ncclMemAlloc has not returned.\nwhy: it was "
                     "freed before, or is of another allocator.\nfix: free memory once, where it "
                     "is from.");
      }
    }
    sim::release(data);
  }

  void* add(const Registration& registration) {
    const std::lock_guard<std::mutex> lock(mutex_);
    void* handle = reinterpret_cast<void*>(++last_handle_);
    registrations_[handle] = registration;
    return handle;
  }

  void remove(void* handle, const Communicator& communicator, bool is_window) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = registrations_.find(handle);
    if (found != registrations_.end() && found->second.communicator == &communicator &&
        found->second.is_window == is_window) {
      registrations_.erase(found);
      return;
    }
    throw Misuse(ncclInvalidArgument, communicator.name() +
                                          " deregisters memory that it has not registered.\nwhy: "
                                          "the handle is of no registration of this communicator."
                                          "\nfix: deregister once, with the same communicator.");
  }

 private:
  std::mutex mutex_;
  // All below: guarded by mutex_.
  std::map<const void*, size_t> bytes_;
  std::map<void*, Registration> registrations_;
  uintptr_t last_handle_ = 0;
};

Memory& memory() {
  static auto* made = new Memory;
  return *made;
}

void check_on_device(const void* data, const Communicator& communicator) {
  if (device_of(data) == communicator.identity().device) return;
  throw Misuse(ncclInvalidArgument, communicator.name() +
                                        " registers memory that is not on its device.\nwhy: "
                                        "NCCL refuses that.\nfix: register memory of the device.");
}

/// A window has the same size on all ranks.
void check_sizes(Communicator& communicator, size_t bytes, int flags) {
  const auto calls =
      communicator.exchange({HostCall::kWindowRegister, static_cast<int>(bytes), flags});
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank].first == static_cast<int>(bytes) && calls[rank].second == flags) continue;
    throw Misuse(ncclInvalidUsage,
                 communicator.name() + " and rank " + std::to_string(rank) +
                     " register windows that differ.\nwhy: they have " + std::to_string(bytes) +
                     " and " + std::to_string(calls[rank].first) +
                     " bytes, or other flags.\nfix: register windows of one size on all ranks.");
  }
}

}  // namespace
}  // namespace farandole::sim::nccl

using namespace farandole::sim::nccl;  // NOLINT: the functions below are global

ncclResult_t ncclMemAlloc(void** data, size_t bytes) {
  return guarded([&] {
    const auto injection = injected("ncclMemAlloc", -1);
    if (injection) throw Failure(injection->result, "an injected error in ncclMemAlloc.");
    *data = memory().allocate(farandole::sim::current_device(), bytes);
    return ncclSuccess;
  });
}

ncclResult_t ncclMemFree(void* data) {
  return guarded([&] {
    memory().release(data);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t, void** handle) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    check_on_device(data, communicator);
    *handle = memory().add({data, communicator.name(), &communicator, false});
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    memory().remove(handle, communicator, false);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, size_t bytes, ncclWindow_t* window,
                                    int flags) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    check_outside_group("ncclCommWindowRegister");
    communicator.check_usable("ncclCommWindowRegister");
    check_on_device(data, communicator);
    return communicator.begin(
        [&communicator, bytes, flags] { check_sizes(communicator, bytes, flags); },
        [&communicator, data, window] {
          *window = static_cast<ncclWindow_t>(
              memory().add({data, communicator.name(), &communicator, true}));
        });
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    memory().remove(window, communicator, true);
    return ncclSuccess;
  });
}
