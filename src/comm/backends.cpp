// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/backends.h"

#include <algorithm>
#include <atomic>

#include "comm/hosts/multi_host_communicator.h"
#include "comm/mpi_loader.h"
#include "comm/nccl_loader.h"
#include "comm/open_files.h"
#include "comm/sealed_store.h"
#include "comm/shm/shared_memory_communicator.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole::comm {
namespace {

using Make = std::unique_ptr<Communicator> (*)(Store&, const CommunicatorOptions&);

#if defined(FARANDOLE_HAS_MPI)
constexpr bool kHasMpi = true;
#else
constexpr bool kHasMpi = false;
#endif
#if defined(FARANDOLE_HAS_CUDA)
constexpr bool kHasCuda = true;
#else
constexpr bool kHasCuda = false;
#endif

/// One row per backend, built or not. The only file that asks what was built.
struct Row {
  const char* name;
  MemoryKind memory_kind;
  Make make;
  bool built;  ///< whether this build has it
  const char* detail;
  std::string (*obstacle)(const Config& config) = nullptr;  ///< see obstacle_to(); null: none
};

constexpr Row kRows[] = {
    {"tcp", MemoryKind::kHost, hosts::MultiHostCommunicator::make, true,
     "ranks of several hosts, CPU tensors: shared memory within a host, TCP between hosts"},
    {"shm", MemoryKind::kHost, shm::SharedMemoryCommunicator::make, true,
     "ranks of one host, CPU tensors"},
    {"mpi", MemoryKind::kHost, make_mpi_communicator, kHasMpi,
     "ranks of one mpirun, CPU tensors, MPI's own collectives; used with FARANDOLE_BACKEND=mpi"},
    {"nccl", MemoryKind::kDevice, make_nccl_communicator, kHasCuda,
     "ranks of any hosts with a GPU each, CUDA tensors: the NCCL that torch has loaded",
     obstacle_to_nccl},
};

const Row& row_of(const std::string& backend) {
  std::string names;
  for (const Row& row : kRows) {
    if (backend == row.name) return row;
    names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  throw InvalidArgument("no-such-backend", "there is no backend '" + backend + "'.",
                        "Farandole knows " + names + ".", "pass one of these names.");
}

/// Once in a process, while there is still room. `before`: descriptors that were open before the
/// group formed.
void warn_of_few_left(const std::string& group, size_t before) {
  static std::atomic<bool> was_told{false};
  const auto now = open_files();
  if (!now || was_told.load()) return;
  const std::string text = text_of_few_left(group, now->open - std::min(now->open, before), *now);
  if (!text.empty() && !was_told.exchange(true)) log(LogLevel::kWarning, text);
}

}  // namespace

std::vector<BackendInfo> backends() {
  std::vector<BackendInfo> list;
  for (const Row& row : kRows) {
    list.push_back({row.name, row.memory_kind, row.built, row.detail});
  }
  return list;
}

std::string backend_for(MemoryKind kind, BackendChoice choice) {
  if (kind == MemoryKind::kHost && choice == BackendChoice::kMpi) return "mpi";
  std::string first;
  for (const Row& row : kRows) {
    if (row.memory_kind != kind) continue;
    if (row.built) return row.name;
    if (first.empty()) first = row.name;
  }
  return first;
}

std::string obstacle_to(const std::string& backend, const Config& config) {
  const Row& row = row_of(backend);
  return row.obstacle == nullptr ? std::string() : row.obstacle(config);
}

std::unique_ptr<Communicator> make_communicator(const std::string& backend, Store& store,
                                                const CommunicatorOptions& options) {
  SealedStore sealed(store, options.config.job_secret);
  const auto before = open_files();
  auto made = row_of(backend).make(sealed, options);
  if (before && made->topology().local_rank == 0) warn_of_few_left(options.name, before->open);
  return made;
}

}  // namespace farandole::comm
