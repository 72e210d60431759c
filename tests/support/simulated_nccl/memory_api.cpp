// SPDX-License-Identifier: Apache-2.0
// Memory of nccl.h: allocation and registration.
#include <string>

#include "support/simulated_device/capture.h"
#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_nccl/api.h"
#include "support/simulated_nccl/group.h"
#include "support/simulated_nccl/memory.h"
#include "support/simulated_nccl/misuse.h"

namespace farandole::sim::nccl {
namespace {

void check_on_device(const void* data, const Communicator& communicator) {
  if (device_of(data) == communicator.identity().device) return;
  throw Misuse(ncclInvalidArgument, communicator.name() +
                                        " registers memory that is not on its device.\nwhy: "
                                        "NCCL refuses that.\nfix: register memory of the device.");
}

/// A window has the same size on all ranks.
void check_sizes(Communicator& communicator, size_t bytes, int flags) {
  const auto calls =
      communicator.exchange({HostCall::kWindowRegister, static_cast<int64_t>(bytes), flags});
  for (size_t rank = 0; rank < calls.size(); ++rank) {
    if (calls[rank].first == static_cast<int64_t>(bytes) && calls[rank].second == flags) continue;
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
    const auto injection = injected("ncclMemAlloc", farandole::sim::current_device());
    if (injection) throw Failure(injection->result, "an injected error in ncclMemAlloc.");
    farandole::sim::check_unsafe_call("ncclMemAlloc");
    *data = memory().allocate(farandole::sim::current_device(), bytes);
    return ncclSuccess;
  });
}

ncclResult_t ncclMemFree(void* data) {
  return guarded([&] {
    farandole::sim::check_unsafe_call("ncclMemFree");
    memory().release(data);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommRegister(ncclComm_t comm, void* data, size_t, void** handle) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    check_on_device(data, communicator);
    *handle = memory().add(data, communicator, /*is_window=*/false);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommDeregister(ncclComm_t comm, void* handle) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    memory().remove(handle, communicator, /*is_window=*/false);
    return ncclSuccess;
  });
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* data, size_t bytes, ncclWindow_t* window,
                                    int flags) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    check_outside_group("ncclCommWindowRegister");
    communicator.check_usable("ncclCommWindowRegister");
    check_on_device(data, communicator);
    communicator.begin(
        [&communicator, bytes, flags] { check_sizes(communicator, bytes, flags); },
        [&communicator, data, window] {
          *window = static_cast<ncclWindow_t>(memory().add(data, communicator, /*is_window=*/true));
        });
    return ncclSuccess;  // of a non-blocking call in progress, too: as NCCL 2.28 does
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  return call(__func__, comm, [&](Communicator& communicator, const auto&) {
    memory().remove(window, communicator, /*is_window=*/true);
    return ncclSuccess;
  });
}
