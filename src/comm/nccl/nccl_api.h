// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <string>

namespace farandole::comm::nccl {

/// Functions of NCCL without their prefix, which every version from kOldestVersion on has.
#define FARANDOLE_NCCL_FUNCTIONS(function)                                                         \
  function(GetVersion) function(GetUniqueId) function(GetErrorString) function(GetLastError)       \
      function(CommInitRankConfig) function(CommSplit) function(CommGetAsyncError)                 \
          function(CommFinalize) function(CommDestroy) function(CommAbort) function(CommRegister)  \
              function(CommDeregister) function(MemAlloc) function(MemFree) function(AllReduce)    \
                  function(Reduce) function(ReduceScatter) function(AllGather) function(Broadcast) \
                      function(Send) function(Recv) function(GroupStart) function(GroupEnd)        \
                          function(RedOpCreatePreMulSum) function(RedOpDestroy)

/// Those that may be missing, and are null then.
#define FARANDOLE_NCCL_OPTIONAL_FUNCTIONS(function) \
  function(CommShrink) function(CommWindowRegister) function(CommWindowDeregister)

/// The functions of the one NCCL of this process. Nothing is linked to NCCL: torch brings its own,
/// and a second copy would not know the first one's state.
struct NcclApi {
  static constexpr int kOldestVersion = NCCL_VERSION(2, 19, 0);

// NOLINTNEXTLINE(bugprone-macro-parentheses): the names of members
#define FARANDOLE_NCCL_MEMBER(name) decltype(&nccl##name) name = nullptr;
  FARANDOLE_NCCL_FUNCTIONS(FARANDOLE_NCCL_MEMBER)
  FARANDOLE_NCCL_OPTIONAL_FUNCTIONS(FARANDOLE_NCCL_MEMBER)
#undef FARANDOLE_NCCL_MEMBER
  std::string library;  ///< where they are from, for messages
  int version = 0;      ///< as ncclGetVersion() tells it: 22809

  /// That of this process, opened by the first call: the library at `path`, or for "" that which
  /// torch has loaded, else the system's. It stays open until the process ends. Throws NotSupported
  /// if there is none that fits, and InvalidArgument for another path than the first one's. Any
  /// thread.
  static const NcclApi& get(const std::string& path);
};

/// "2.28.9"
std::string version_text(int version);

}  // namespace farandole::comm::nccl
