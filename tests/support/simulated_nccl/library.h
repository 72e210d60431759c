// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "support/simulated_nccl/control.h"

namespace farandole::sim {

/// The functions of the simulated NCCL, opened by name as NCCL is by a plug-in.
struct NcclLibrary {
#define FARANDOLE_NCCL_FUNCTIONS(X)                                                             \
  X(GetVersion)                                                                                 \
  X(GetUniqueId)                                                                                \
  X(CommInitRankConfig)                                                                         \
  X(CommSplit)                                                                                  \
  X(CommShrink)                                                                                 \
  X(CommGetAsyncError)                                                                          \
  X(CommFinalize)                                                                               \
  X(CommDestroy) X(CommAbort) X(CommCount) X(CommUserRank) X(CommCuDevice) X(GetErrorString)    \
      X(GetLastError) X(AllReduce) X(Reduce) X(ReduceScatter) X(AllGather) X(Broadcast) X(Send) \
          X(Recv) X(GroupStart) X(GroupEnd) X(RedOpCreatePreMulSum) X(RedOpDestroy) X(MemAlloc) \
              X(MemFree) X(CommRegister) X(CommDeregister) X(CommWindowRegister)                \
                  X(CommWindowDeregister) X(SimulatedInject) X(SimulatedTakeReports)
#define FARANDOLE_NCCL_MEMBER(name) \
  decltype(&nccl##name) name = find<decltype(&nccl##name)>("nccl" #name);
  FARANDOLE_NCCL_FUNCTIONS(FARANDOLE_NCCL_MEMBER)
#undef FARANDOLE_NCCL_MEMBER
#undef FARANDOLE_NCCL_FUNCTIONS

 private:
  template <class Function>
  static Function find(const char* name) {
    static void* library = ::dlopen(FARANDOLE_SIMULATED_NCCL, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(::dlerror());
    void* found = ::dlsym(library, name);
    if (found == nullptr) throw std::runtime_error(std::string(name) + " is missing");
    return reinterpret_cast<Function>(found);
  }
};

/// That of this process. Any thread.
inline const NcclLibrary& nccl() {
  static const NcclLibrary library;
  return library;
}

}  // namespace farandole::sim
