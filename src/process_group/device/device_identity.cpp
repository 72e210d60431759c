// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_identity.h"

#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <fstream>

namespace farandole {
namespace {

std::string host_identity() {
  if (const char* const given = std::getenv("NCCL_HOSTID")) return given;
  char name[256] = {};
  ::gethostname(name, sizeof name - 1);
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string boot_id;
  std::getline(file, boot_id);
  return name + boot_id;
}

}  // namespace

/// torch has no function for it, so this asks the CUDA runtime that torch has loaded, by name.
std::string identity_of(c10::Device device) {
  const char* const shared = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
  if (shared != nullptr && std::strcmp(shared, "1") == 0) return {};
  using GetBusId = int(char*, int, int);
  static auto* const get =
      reinterpret_cast<GetBusId*>(::dlsym(RTLD_DEFAULT, "cudaDeviceGetPCIBusId"));
  char bus[32] = {};
  if (get == nullptr || get(bus, sizeof bus, device.index()) != 0) return {};
  return host_identity() + " " + bus;
}

}  // namespace farandole
