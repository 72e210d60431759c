// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_nccl/api.h"

#include <exception>

#include "support/simulated_nccl/handles.h"
#include "support/simulated_nccl/misuse.h"
#include "support/simulated_nccl/wait.h"

namespace farandole::sim::nccl {
namespace {

thread_local std::string last;

}  // namespace

ncclResult_t guarded(const std::function<ncclResult_t()>& body) {
  try {
    return body();
  } catch (const Misuse& misuse) {
    report(misuse.what());
    last = misuse.what();
    return misuse.result;
  } catch (const Failure& failure) {
    last = failure.what();
    return failure.result;
  } catch (const Aborted&) {
    last = "the communicator was aborted while a call waited";
    return ncclInternalError;
  } catch (const std::exception& error) {
    last = error.what();
    return ncclUnhandledCudaError;
  }
}

ncclResult_t call(const char* function, ncclComm_t handle, const CallBody& body) {
  return guarded([&] {
    const auto communicator = resolve(handle, function);
    const auto injection = injected(function, communicator->rank());
    if (injection && injection->fault == ncclSimulatedReturn) {
      throw Failure(injection->result, communicator->name() + " has an injected error in " +
                                           std::string(function) + ".");
    }
    return body(*communicator, injection);
  });
}

const std::string& last_error() { return last; }

}  // namespace farandole::sim::nccl
