// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/runtime.h"

#include <chrono>
#include <cstdlib>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "comm/fork_guard.h"
#include "comm/mpi/check.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {
namespace {

std::atomic<bool> is_ended{false};        // from the beginning of MPI_Finalize() on
std::atomic<bool> peer_has_ended{false};  // MPI_Finalize() would not return
std::atomic<bool> end_is_suspected{false};
std::atomic<void (*)(bool)> stop_before_end{nullptr};

/// How long MPI may take to find out that a process has ended.
constexpr std::chrono::milliseconds kNoticing{2000};

/// Who is to be told before the end.
struct Leavers {
  std::mutex mutex;
  std::map<const void*, std::function<void()>> leave;  // guarded by mutex
};
Leavers& leavers() {
  static auto* const leavers = new Leavers;  // groups may be destroyed later than it would be
  return *leavers;
}

void end(bool delivers) {
  {
    const std::lock_guard<std::mutex> lock(leavers().mutex);
    for (const auto& [owner, leave] : leavers().leave) leave();
    leavers().leave.clear();
  }
  if (!delivers) is_ended = true;  // else MPI is called until all is delivered
  if (const auto stop = stop_before_end.load()) stop(delivers);
  is_ended = true;
}

/// MPI deletes the attributes of MPI_COMM_SELF as the first step of MPI_Finalize().
int note_end(MPI_Comm, int, void*, void*) {
  if (!is_ended) end(/*delivers=*/false);
  return MPI_SUCCESS;
}

void notice_end() {
  int key = MPI_KEYVAL_INVALID;
  check(MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, note_end, &key, nullptr),
        "MPI_Comm_create_keyval");
  check(MPI_Comm_set_attr(MPI_COMM_SELF, key, nullptr), "MPI_Comm_set_attr");
}

const ForkGuard& creator() {
  static const ForkGuard guard;
  return guard;
}

void finalize_at_exit() {
  if (!creator().in_creator() || is_ended) return;
  if (Runtime::calls_under_way() > 0 || Runtime::has_lost_a_process()) {
    end(/*delivers=*/true);
  } else {
    MPI_Finalize();
  }
}

void refuse_level(int level, const char* who) {
  throw NotSupported("mpi-thread-level",
                     std::string("MPI was initialized by ") + who + " with thread level " +
                         std::to_string(level) + ", and MPI_THREAD_MULTIPLE (" +
                         std::to_string(MPI_THREAD_MULTIPLE) + ") is needed.",
                     "messages and collectives of a group run on several threads.",
                     "initialize MPI with MPI_THREAD_MULTIPLE (mpi4py: the default), or leave that "
                     "to Farandole; use an MPI that is built with it.");
}

std::string find_job() {
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID", "SLURM_JOB_ID"}) {
    const char* const value = std::getenv(name);
    if (value != nullptr && *value != '\0') return value;
  }
  return "-";
}

}  // namespace

Runtime& Runtime::get() {
  static Runtime runtime;
  if (is_over()) {
    throw NotSupported("mpi-finalized", "MPI was finalized in this process already.",
                       "it cannot be initialized again.",
                       "make groups before MPI_Finalize(), and leave that call to the exit.");
  }
  return runtime;
}

Runtime::Runtime() {
  creator();
  int was_initialized = 0;
  check(MPI_Initialized(&was_initialized), "MPI_Initialized");
  int level = MPI_THREAD_SINGLE;
  if (is_over()) return;  // get() says so
  if (was_initialized != 0) {
    check(MPI_Query_thread(&level), "MPI_Query_thread");
    if (level < MPI_THREAD_MULTIPLE) refuse_level(level, "the program");
  } else {
    ::setenv("OMPI_MCA_btl_tcp_flags", "1", /*overwrite=*/0);
    check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level), "MPI_Init_thread");
    std::atexit(finalize_at_exit);
    if (level < MPI_THREAD_MULTIPLE) refuse_level(level, "Farandole");
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  }
  notice_end();
  check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank");
  check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size");
  void* bound = nullptr;  // to an int
  int is_known = 0;
  check(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, static_cast<void*>(&bound), &is_known),
        "MPI_Comm_get_attr");
  if (is_known != 0) most_tag_ = *static_cast<int*>(bound);
  job_ = find_job();
}

bool Runtime::is_over() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  return is_ended || finalized != 0;
}

void Runtime::before_end(const void* owner, std::function<void()> leave) {
  const std::lock_guard<std::mutex> lock(leavers().mutex);
  if (leave) {
    leavers().leave[owner] = std::move(leave);
  } else {
    leavers().leave.erase(owner);
  }
}

void Runtime::stop_at_end(void (*stop)(bool delivers)) { stop_before_end = stop; }

void Runtime::note_an_end() { peer_has_ended = true; }

void Runtime::suspect_an_end() { end_is_suspected = true; }

bool Runtime::has_lost_a_process() {
  if (is_over()) return peer_has_ended;
  const auto until = std::chrono::steady_clock::now() + kNoticing;
  do {
    if (peer_has_ended || failed_process(MPI_COMM_WORLD) >= 0) return peer_has_ended = true;
    if (!end_is_suspected) return false;
    int is_there = 0;  // lets MPI hear of it
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_SELF, &is_there, MPI_STATUS_IGNORE);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (std::chrono::steady_clock::now() < until);
  end_is_suspected = false;
  return false;
}

std::atomic<int>& Runtime::calls_under_way() {
  static std::atomic<int> calls{0};
  return calls;
}

}  // namespace farandole::comm::mpi
