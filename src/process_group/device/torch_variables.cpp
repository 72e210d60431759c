// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/torch_variables.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "log.h"

namespace farandole {
namespace {

/// A variable that changes nothing, unless it has the value `harmless`.
struct Unused {
  const char* name;
  const char* harmless;  ///< what this backend does in any case; "" if there is none
  const char* reason;
};

constexpr Unused kUnused[] = {
    {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "2",
     "an error of a collective aborts the group and is raised by later calls; the process is not "
     "ended"},
    {"TORCH_NCCL_AVOID_RECORD_STREAMS", "1", "tensors are always kept by references"},
    {"TORCH_NCCL_HIGH_PRIORITY", "1", "collectives always run on a stream of high priority"},
    {"TORCH_NCCL_USE_COMM_NONBLOCKING", "1", "communicators are always non-blocking"},
    {"TORCH_NCCL_NAN_CHECK", "0", "tensors are not searched for NaN; see FARANDOLE_CHECK_FINITE"},
    {"TORCH_NCCL_ENABLE_TIMING", "0", "only completion hooks are told times"},
    {"TORCH_NCCL_DESYNC_DEBUG", "1", "timeouts always name the ranks that have not come"},
    {"TORCH_NCCL_ENABLE_MONITORING", "0", "no thread watches the watchdog"},
    {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "", "no thread watches the watchdog"},
    {"TORCH_NCCL_DUMP_ON_TIMEOUT", "0", "nothing is dumped at a timeout"},
};

const char* value_of(const char* name) {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

}  // namespace

bool waits_on_host() {
  static const bool waits = [] {
    const char* const value = value_of("TORCH_NCCL_BLOCKING_WAIT");
    return value != nullptr && std::strcmp(value, "0") != 0;
  }();
  return waits;
}

void warn_of_torch_variables() {
  static const bool is_done = [] {
    for (const Unused& each : kUnused) {
      const char* const value = value_of(each.name);
      if (value == nullptr || std::strcmp(value, each.harmless) == 0) continue;
      log(LogLevel::kWarning, std::string(each.name) + "=" + value +
                                  " changes nothing in the backend farandole: " + each.reason +
                                  ".");
    }
    return true;
  }();
  static_cast<void>(is_done);
}

}  // namespace farandole
