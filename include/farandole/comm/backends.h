// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/comm/store.h"
#include "farandole/config.h"
#include "farandole/export.h"

namespace farandole::comm {

/// What a new communicator is made of.
struct CommunicatorOptions {
  std::string name = "default";  ///< for messages and for keys in the store
  int rank = 0;
  int world_size = 1;
  Config config = Config::from_environment();
  /// How long to wait for the other ranks while the group forms; zero means config.timeout.
  std::chrono::milliseconds formation_timeout{0};
  /// Versions of what is above comm, "torch 2.11.0"; ranks with other ones do not form a group.
  std::string build;
  /// How often the launcher has restarted the job, as text; empty if it does not tell.
  std::string attempt;
  /// May be empty.
  WhileForming while_forming;
  /// Called on this rank when it aborts the group, for whatever reason, before a call of this rank
  /// fails of that; peers have been told, so they do not wait for it. On the thread that met the
  /// reason, without a lock. Must not throw or call a collective. May be empty.
  std::function<void()> before_abort;
  /// For MemoryKind::kDevice: the communicator of the same ranks on host memory, through which they
  /// meet and which watches over them; nobody else uses it meanwhile. Null: they make one.
  std::shared_ptr<Communicator> control;
};

/// One way to communicate. Backends that are not built stay listed, so that an error can say how to
/// get them.
struct BackendInfo {
  std::string name;        ///< "tcp", "shm", "mpi", "nccl"
  MemoryKind memory_kind;  ///< what its communicators work on
  bool built;              ///< whether this build holds it
  std::string detail;      ///< what it serves, or how to get it
};

/// All backends that Farandole knows, built or not.
FARANDOLE_API std::vector<BackendInfo> backends();

/// The name of the backend that a group uses for memory of `kind`: the first one that is built, or
/// "mpi" for host memory if that is the choice. Where none is built it is one that says how to get
/// it when a communicator of it is made.
FARANDOLE_API std::string backend_for(MemoryKind kind, BackendChoice choice = BackendChoice::kAuto);

/// Why this process cannot use `backend`, a sentence; empty if nothing is known to be against it.
/// Opens the libraries that the backend needs. Throws InvalidArgument for an unknown one. Any
/// thread.
FARANDOLE_API std::string obstacle_to(const std::string& backend, const Config& config);

/// Makes a communicator of backend `backend`. Collective: every rank calls it with the same world
/// size and a Store that they share. Throws NotSupported (with the way to get it) for a backend
/// that is not built, InvalidArgument for an unknown one, TimeoutError naming ranks that did not
/// come.
FARANDOLE_API std::unique_ptr<Communicator> make_communicator(const std::string& backend,
                                                              Store& store,
                                                              const CommunicatorOptions& options);

}  // namespace farandole::comm
