// SPDX-License-Identifier: Apache-2.0
#include "farandole/config.h"

#include <cerrno>
#include <cstdlib>

#include "farandole/error.h"

namespace farandole {
namespace {

const char* value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

[[noreturn]] void reject(const char* variable, const std::string& value, const std::string& takes) {
  throw InvalidArgument("setting-value",
                        std::string(variable) + "='" + value + "' is not a valid setting.",
                        std::string(variable) + " takes " + takes + ".",
                        std::string("set it to such a value, or unset it for the default."));
}

/// The variable as a whole number within [low, high], or `fallback` where it is not set.
long long number(const char* variable, long long fallback, long long low, long long high) {
  const char* text = value_of(variable);
  if (text == nullptr) return fallback;
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(text, &end, 10);
  if (errno != 0 || *end != '\0' || value < low || value > high) {
    reject(variable, text,
           "a whole number from " + std::to_string(low) + " to " + std::to_string(high));
  }
  return value;
}

SegmentBacking segment_backing() {
  const char* text = value_of("FARANDOLE_SEGMENTS");
  if (text == nullptr) return SegmentBacking::kAuto;
  const std::string value = text;
  if (value == "auto") return SegmentBacking::kAuto;
  if (value == "memfd") return SegmentBacking::kMemfd;
  if (value == "tmpfile") return SegmentBacking::kTmpfile;
  reject("FARANDOLE_SEGMENTS", value, "auto, memfd or tmpfile");
}

BackendChoice backend_choice() {
  const char* text = value_of("FARANDOLE_BACKEND");
  if (text == nullptr) return BackendChoice::kAuto;
  const std::string value = text;
  if (value == "auto") return BackendChoice::kAuto;
  if (value == "mpi") return BackendChoice::kMpi;
  reject("FARANDOLE_BACKEND", value, "auto or mpi");
}

HostLinkChoice link_choice() {
  const char* text = value_of("FARANDOLE_LINK");
  if (text == nullptr) return HostLinkChoice::kTcp;
  const std::string value = text;
  if (value == "tcp") return HostLinkChoice::kTcp;
  if (value == "mpi") return HostLinkChoice::kMpi;
  reject("FARANDOLE_LINK", value, "tcp or mpi");
}

DeviceBackendChoice device_backend_choice() {
  const char* text = value_of("FARANDOLE_DEVICE_BACKEND");
  if (text == nullptr) return DeviceBackendChoice::kAuto;
  const std::string value = text;
  if (value == "auto") return DeviceBackendChoice::kAuto;
  if (value == "nccl") return DeviceBackendChoice::kNccl;
  if (value == "staged") return DeviceBackendChoice::kStaged;
  reject("FARANDOLE_DEVICE_BACKEND", value, "auto, nccl or staged");
}

DeviceKernelsChoice device_kernels_choice() {
  const char* text = value_of("FARANDOLE_DEVICE_KERNELS");
  if (text == nullptr) return DeviceKernelsChoice::kAuto;
  const std::string value = text;
  if (value == "auto") return DeviceKernelsChoice::kAuto;
  if (value == "torch") return DeviceKernelsChoice::kTorch;
  reject("FARANDOLE_DEVICE_KERNELS", value, "auto or torch");
}

NonfinitePolicy nonfinite_policy() {
  const char* text = value_of("FARANDOLE_CHECK_FINITE");
  if (text == nullptr) return NonfinitePolicy::kOff;
  const std::string value = text;
  if (value == "off") return NonfinitePolicy::kOff;
  if (value == "warn") return NonfinitePolicy::kWarn;
  if (value == "skip") return NonfinitePolicy::kSkip;
  if (value == "raise") return NonfinitePolicy::kRaise;
  reject("FARANDOLE_CHECK_FINITE", value, "off, warn, skip or raise");
}

bool wants_born_gradients() {
  const char* text = value_of("FARANDOLE_BORN_GRADIENTS");
  if (text == nullptr) return true;
  const std::string value = text;
  if (value == "1") return true;
  if (value == "0") return false;
  reject("FARANDOLE_BORN_GRADIENTS", value, "1 or 0");
}

std::string wanted_job_secret() {
  constexpr size_t kLeast = 32;
  const char* text = value_of("FARANDOLE_JOB_SECRET");
  const std::string value = text == nullptr ? "" : text;
  if (!value.empty() && value.size() < kLeast) {
    // The value is not told: errors are printed.
    reject("FARANDOLE_JOB_SECRET", std::to_string(value.size()) + " characters",
           "at least " + std::to_string(kLeast) + " characters, as `openssl rand -hex 32` prints");
  }
  return value;
}

std::string wanted_log_level() {
  const char* text = value_of("FARANDOLE_LOG");
  const std::string value = text == nullptr ? "info" : text;
  for (const char* level : {"error", "warning", "info", "debug"}) {
    if (value == level) return value;
  }
  reject("FARANDOLE_LOG", value, "error, warning, info or debug");
}

}  // namespace

Config Config::from_environment() {
  constexpr long long kPage = 4096;
  Config config;
  config.backend = backend_choice();
  config.link = link_choice();
  config.device_backend = device_backend_choice();
  config.device_kernels = device_kernels_choice();
  if (const char* path = value_of("FARANDOLE_NCCL_LIBRARY")) config.nccl_library = path;
  if (const char* host = value_of("FARANDOLE_HOST_ID")) config.host_id = host;
  if (const char* names = value_of("FARANDOLE_NETWORK_INTERFACE")) config.network_interface = names;
  config.link_timeout = std::chrono::seconds(number("FARANDOLE_LINK_TIMEOUT_S", 10, 1, 3600));
  config.job_secret = wanted_job_secret();
  config.spin =
      std::chrono::microseconds(number("FARANDOLE_SPIN_US", config.spin.count(), 0, 10'000'000));
  const auto staging = number("FARANDOLE_STAGING_BYTES",
                              static_cast<long long>(config.staging_bytes), 5 * kPage, 1LL << 32);
  config.staging_bytes = static_cast<size_t>((staging + kPage - 1) / kPage * kPage);
  config.segments = segment_backing();
  const long long default_s =
      std::chrono::duration_cast<std::chrono::seconds>(config.timeout).count();
  config.timeout =
      std::chrono::seconds(number("FARANDOLE_TIMEOUT_S", default_s, 1, 365LL * 24 * 3600));
  config.check_finite = nonfinite_policy();
  config.born_gradients = wants_born_gradients();
  config.log_level = wanted_log_level();
  return config;
}

}  // namespace farandole
