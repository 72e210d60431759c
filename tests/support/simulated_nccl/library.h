// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

#include "support/simulated_nccl/control.h"

namespace farandole::sim {

/// The functions of the simulated NCCL, opened by name as NCCL is by a plug-in.
struct NcclLibrary {
#define FARANDOLE_NCCL(name) decltype(&nccl##name) name = find<decltype(&nccl##name)>("nccl" #name)
  FARANDOLE_NCCL(GetVersion);
  FARANDOLE_NCCL(GetUniqueId);
  FARANDOLE_NCCL(CommInitRankConfig);
  FARANDOLE_NCCL(CommSplit);
  FARANDOLE_NCCL(CommShrink);
  FARANDOLE_NCCL(CommGetAsyncError);
  FARANDOLE_NCCL(CommFinalize);
  FARANDOLE_NCCL(CommDestroy);
  FARANDOLE_NCCL(CommAbort);
  FARANDOLE_NCCL(CommCount);
  FARANDOLE_NCCL(CommUserRank);
  FARANDOLE_NCCL(CommCuDevice);
  FARANDOLE_NCCL(GetErrorString);
  FARANDOLE_NCCL(GetLastError);
  FARANDOLE_NCCL(AllReduce);
  FARANDOLE_NCCL(Reduce);
  FARANDOLE_NCCL(ReduceScatter);
  FARANDOLE_NCCL(AllGather);
  FARANDOLE_NCCL(Broadcast);
  FARANDOLE_NCCL(Send);
  FARANDOLE_NCCL(Recv);
  FARANDOLE_NCCL(GroupStart);
  FARANDOLE_NCCL(GroupEnd);
  FARANDOLE_NCCL(RedOpCreatePreMulSum);
  FARANDOLE_NCCL(RedOpDestroy);
  FARANDOLE_NCCL(MemAlloc);
  FARANDOLE_NCCL(MemFree);
  FARANDOLE_NCCL(CommRegister);
  FARANDOLE_NCCL(CommDeregister);
  FARANDOLE_NCCL(CommWindowRegister);
  FARANDOLE_NCCL(CommWindowDeregister);
  FARANDOLE_NCCL(SimulatedInject);
  FARANDOLE_NCCL(SimulatedDropInjections);
  FARANDOLE_NCCL(SimulatedTakeReports);
#undef FARANDOLE_NCCL

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
