// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <string>

#include "farandole/export.h"

namespace farandole {

/// Where the pages of shared segments come from.
enum class SegmentBacking {
  kAuto,     ///< memfd, and a file in /dev/shm where the kernel refuses memfd
  kMemfd,    ///< memfd_create alone
  kTmpfile,  ///< an unnamed file in /dev/shm, its pages reserved up front
};

/// Through what the ranks of a group communicate.
enum class BackendChoice {
  kAuto,  ///< shared memory within a host, TCP between hosts
  kMpi,   ///< MPI's own collectives
};

/// Through what ranks of different hosts exchange the bytes of collectives.
enum class HostLinkChoice {
  kTcp,  ///< TCP connections
  kMpi,  ///< messages of MPI
};

/// How tensors on accelerators travel.
enum class DeviceBackendChoice {
  kAuto,    ///< through NCCL where it can serve, else as kStaged
  kNccl,    ///< through NCCL; an error where it cannot serve
  kStaged,  ///< through pinned host memory and the communicators for tensors on the CPU
};

/// What computes the steps of sharded optimizers on accelerators.
enum class DeviceKernelsChoice {
  kAuto,  ///< Farandole's own kernels where they know the rule and the device, else as kTorch
  kTorch  ///< operations of torch
};

/// What becomes of a backward in which a gradient has an Inf or NaN on some rank.
enum class NonfinitePolicy {
  kOff,   ///< nobody looks
  kWarn,  ///< one line in the log; gradients stay as they are
  kSkip,  ///< the same, and no parameter has a gradient on any rank: steps change nothing
  kRaise  ///< a BackwardError on every rank; gradients as with kSkip
};

/// Every environment variable that Farandole reads: one field each. docs/configuration.md is
/// compared with this header by a test.
struct FARANDOLE_API Config {
  /// FARANDOLE_BACKEND: auto or mpi; through what tensors on the CPU travel: shared memory and TCP,
  /// or MPI's own collectives. Default auto.
  BackendChoice backend = BackendChoice::kAuto;
  /// FARANDOLE_LINK: tcp or mpi; through what collectives travel between hosts. Default tcp.
  HostLinkChoice link = HostLinkChoice::kTcp;
  /// FARANDOLE_DEVICE_BACKEND: auto, nccl or staged; through what tensors on accelerators travel:
  /// NCCL, or pinned host memory and what serves tensors on the CPU. Default auto.
  DeviceBackendChoice device_backend = DeviceBackendChoice::kAuto;
  /// FARANDOLE_DEVICE_KERNELS: auto or torch; what computes the steps of sharded optimizers on
  /// accelerators: Farandole's own kernels where they know the rule and the device, or torch's
  /// operations. Default auto.
  DeviceKernelsChoice device_kernels = DeviceKernelsChoice::kAuto;
  /// FARANDOLE_NCCL_LIBRARY: path of the NCCL library for memory of accelerators; empty: the one
  /// that torch has loaded, else the system's libnccl.so.2.
  std::string nccl_library;
  /// FARANDOLE_HOST_ID: name of the host that this rank claims to be on; empty: the kernel's boot
  /// id, the network namespace and the user. Tests use it to emulate several hosts on one machine.
  std::string host_id;
  /// FARANDOLE_NETWORK_INTERFACE: through which interface ranks of different hosts talk: names and
  /// networks in CIDR notation, the first one that this host has, as in `eth0,10.1.0.0/16`; empty:
  /// the first interface that is up, loopback and bridges of containers last.
  std::string network_interface;
  /// FARANDOLE_LINK_TIMEOUT_S: seconds after which a host that does not answer is lost; 1 to 3600.
  /// Default 10.
  std::chrono::milliseconds link_timeout{std::chrono::seconds(10)};
  /// FARANDOLE_JOB_SECRET: a secret that the ranks of a job share, at least 32 characters. Ranks
  /// prove that they know it when they connect to each other. Empty: the job has no secret.
  std::string job_secret;
  /// FARANDOLE_SPIN_US: microseconds a waiting rank spins before it sleeps; 0 sleeps at once. A
  /// rank whose peer waits for the same core sleeps at once in any case. Groups with more ranks on
  /// a host than cores yield the core instead of spinning. Default 1000.
  std::chrono::microseconds spin{1000};
  /// FARANDOLE_STAGING_BYTES: bytes of the ring (one per rank and group) through which tensors
  /// outside symmetric memory pass; 20480 to 2^32, rounded up to whole pages. Default 2097152.
  size_t staging_bytes = size_t{2} * 1024 * 1024;
  /// FARANDOLE_SEGMENTS: auto, memfd or tmpfile. Default auto.
  SegmentBacking segments = SegmentBacking::kAuto;
  /// FARANDOLE_TIMEOUT_S: seconds that a collective waits for a late rank where the caller gave no
  /// timeout. Default 1800, as torch.distributed.
  std::chrono::milliseconds timeout{std::chrono::minutes(30)};
  /// FARANDOLE_CHECK_FINITE: off, warn, skip or raise; what becomes of a backward in which a
  /// gradient has an Inf or NaN, where a DistributedDataParallel was not told by report_nonfinite.
  /// Default off.
  NonfinitePolicy check_finite = NonfinitePolicy::kOff;
  /// FARANDOLE_BORN_GRADIENTS: 1 or 0; whether a DistributedDataParallel lets gradients be computed
  /// in their buckets, which puts an allocator of ours before torch's. With 0 they are copied into
  /// them, and torch's allocator is left alone. Default 1.
  bool born_gradients = true;
  /// FARANDOLE_LOG: error, warning, info or debug; lines go to standard error. Default info.
  std::string log_level = "info";

  /// Reads the environment. Throws InvalidArgument naming the variable, its value and what it
  /// takes.
  static Config from_environment();
};

}  // namespace farandole
