// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/nccl_api.h"

#include <dlfcn.h>

#include <mutex>
#include <optional>

#include "comm/nccl_loader.h"
#include "farandole/error.h"

namespace farandole::comm::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";

/// Where the functions are looked for.
struct Source {
  void* library;
  std::string name;
};

Source find_library(const std::string& path) {
  if (!path.empty()) {
    void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (library == nullptr) refuse_nccl(std::string(::dlerror()) + ".");
    return {library, path};
  }
  if (void* const loaded = ::dlopen(kLibrary, RTLD_NOW | RTLD_NOLOAD)) return {loaded, kLibrary};
  if (::dlsym(RTLD_DEFAULT, "ncclGetVersion") != nullptr) {
    return {RTLD_DEFAULT, "the NCCL that is a part of this process"};
  }
  void* const library = ::dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    refuse_nccl(std::string("torch has loaded no NCCL, and ") + ::dlerror() + ".");
  }
  return {library, kLibrary};
}

NcclApi open(const std::string& path) {
  const Source source = find_library(path);
  NcclApi api;
  api.library = source.name;
  const auto require = [&](const char* name, void* function) {
    if (function == nullptr) refuse_nccl(source.name + " has no function " + name + ".");
  };
#define FARANDOLE_NCCL_FIND(name) \
  api.name = reinterpret_cast<decltype(api.name)>(::dlsym(source.library, "nccl" #name));
#define FARANDOLE_NCCL_REQUIRE(name) \
  FARANDOLE_NCCL_FIND(name)          \
  require("nccl" #name, reinterpret_cast<void*>(api.name));
  FARANDOLE_NCCL_FUNCTIONS(FARANDOLE_NCCL_REQUIRE)
  FARANDOLE_NCCL_OPTIONAL_FUNCTIONS(FARANDOLE_NCCL_FIND)
#undef FARANDOLE_NCCL_REQUIRE
#undef FARANDOLE_NCCL_FIND
  if (api.GetVersion(&api.version) != ncclSuccess || api.version < NcclApi::kOldestVersion) {
    refuse_nccl(source.name + " is NCCL " + version_text(api.version) + ", and " +
                version_text(NcclApi::kOldestVersion) + " is the oldest that has what is needed.");
  }
  return api;
}

}  // namespace

const NcclApi& NcclApi::get(const std::string& path) {
  static std::mutex mutex;
  static std::optional<NcclApi> api;  // guarded by mutex until it is there
  static std::string first_path;      // likewise
  const std::lock_guard<std::mutex> lock(mutex);
  if (!api) {
    api = open(path);
    first_path = path;
  }
  if (path != first_path) {
    throw InvalidArgument(
        "nccl-library-changed",
        "FARANDOLE_NCCL_LIBRARY changed from '" + first_path + "' to '" + path + "'.",
        "a process has one NCCL, which the first group on accelerators has opened.",
        "set it before the first group is made, and leave it.");
  }
  return *api;
}

std::string version_text(int version) {
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

}  // namespace farandole::comm::nccl
