// SPDX-License-Identifier: Apache-2.0
#include "process_group/launch.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <functional>

#include "farandole/error.h"
#include "log.h"
#include "process_group/slurm.h"

namespace farandole {
namespace {

/// The variables of torchrun.
constexpr const char* kRank = "RANK";
constexpr const char* kWorldSize = "WORLD_SIZE";
constexpr const char* kMasterAddress = "MASTER_ADDR";
constexpr const char* kMasterPort = "MASTER_PORT";

/// What another launcher tells its processes. A new launcher is one row in kLaunchers.
struct Launcher {
  const char* name;
  const char* sign;  ///< set in each process that it started
  const char* rank;
  std::array<const char*, 2> world_size;  ///< the first that is set counts; may be null
  const char* local_rank;
  const char* local_world_size;  ///< may be null
  const char* run;               ///< the same on all ranks, another in each run; may be null
  const char* folder;            ///< that it makes for a run on each host; may be null
};
constexpr const char* kSrun = "srun";
constexpr std::array<Launcher, 4> kLaunchers{{
    // OpenMPI's comes before srun, which starts its daemons.
    {"mpirun",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_RANK",
     {"OMPI_COMM_WORLD_SIZE"},
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     "PMIX_NAMESPACE",
     "PMIX_SERVER_TMPDIR"},
    {"mpirun",
     "MV2_COMM_WORLD_SIZE",
     "MV2_COMM_WORLD_RANK",
     {"MV2_COMM_WORLD_SIZE"},
     "MV2_COMM_WORLD_LOCAL_RANK",
     "MV2_COMM_WORLD_LOCAL_SIZE",
     nullptr,
     nullptr},
    // SLURM_NTASKS is set in the shells of sbatch and salloc too, which are no task of a step.
    {kSrun,
     "SLURM_STEP_ID",
     "SLURM_PROCID",
     {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
     "SLURM_LOCALID",
     nullptr,
     "SLURM_STEP_ID",
     nullptr},
    // Hydra's, of MPICH and Intel MPI; srun sets the first two as well.
    {"mpirun",
     "PMI_SIZE",
     "PMI_RANK",
     {"PMI_SIZE"},
     "MPI_LOCALRANKID",
     "MPI_LOCALNRANKS",
     nullptr,
     nullptr},
}};

const char* value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

const char* require(const char* variable) {
  if (const char* value = value_of(variable)) return value;
  const char* set = value_of(kRank) ? kRank : kWorldSize;
  throw InvalidArgument(
      "variable-missing", std::string("the environment variable ") + variable + " is not set.",
      std::string(set) +
          " is, so a launcher seems to have started this process; torchrun sets RANK, WORLD_SIZE, "
          "MASTER_ADDR and MASTER_PORT.",
      std::string("start it with torchrun, set ") + variable + " on every rank, or unset " + set +
          " to run alone.");
}

int number_of(const char* variable, const char* text) {
  int number = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error == std::errc() && rest == end && number >= 0) return number;
  throw InvalidArgument("variable-not-a-number",
                        std::string("the environment variable ") + variable + " is '" + text + "'.",
                        "it must be an integer of at least 0.",
                        std::string("set ") + variable + " to such a number on every rank.");
}

int number_or(const char* variable, int fallback) {
  const char* text = value_of(variable);
  return text == nullptr ? fallback : number_of(variable, text);
}

void check_rank(const char* rank, const char* world_size, const Launch& launch) {
  if (launch.rank < launch.world_size) return;
  throw InvalidArgument("launcher-rank",
                        std::string(rank) + " is " + std::to_string(launch.rank) + " and " +
                            world_size + " is " + std::to_string(launch.world_size) + ".",
                        "ranks count from 0 to the world size minus one.",
                        "set both on every rank as a launcher would.");
}

Launch launch_by_torchrun() {
  Launch launch;
  launch.launcher = "torchrun";
  launch.rank = number_of(kRank, require(kRank));
  launch.world_size = number_of(kWorldSize, require(kWorldSize));
  check_rank(kRank, kWorldSize, launch);
  launch.local_rank = number_or("LOCAL_RANK", launch.rank);
  launch.local_world_size = number_or("LOCAL_WORLD_SIZE", launch.world_size);
  launch.master_address = require(kMasterAddress);
  launch.master_port = number_of(kMasterPort, require(kMasterPort));
  launch.by_hand = value_of("TORCHELASTIC_RUN_ID") == nullptr;
  const char* agent = value_of("TORCHELASTIC_USE_AGENT_STORE");
  launch.store_is_served = agent != nullptr && std::strcmp(agent, "True") == 0;
  return launch;
}

/// The variable that tells how many processes it started; null if it did not start this one.
const char* size_variable(const Launcher& launcher) {
  if (!value_of(launcher.sign) || !value_of(launcher.rank)) return nullptr;
  for (const char* variable : launcher.world_size) {
    if (variable != nullptr && value_of(variable)) return variable;
  }
  return nullptr;
}

/// srun may have started the processes of Hydra that started this one.
bool is_of_hydra(const Launcher& launcher, int world_size) {
  return launcher.name == kSrun && value_of("PMI_RANK") != nullptr &&
         number_or("PMI_SIZE", world_size) != world_size;
}

/// A port below those that Linux gives to connections, which runs at one time hardly share.
int port_of(const std::string& run) {
  return 10000 + static_cast<int>(std::hash<std::string>{}(run) % 20000);
}

/// Where the ranks meet, if the environment says so. MASTER_ADDR and MASTER_PORT come first; then
/// the launcher's folder where all ranks are on one host, and Slurm's list of hosts, where rank 0
/// is on the first.
void find_meeting_place(const Launcher& launcher, Launch* launch) {
  const char* job = value_of("SLURM_JOB_ID");
  const char* run = launcher.run == nullptr ? nullptr : value_of(launcher.run);
  const std::string named = std::string(job == nullptr ? "" : job) + "." + (run ? run : "");
  launch->master_port = number_or(kMasterPort, run == nullptr ? 0 : port_of(named));
  if (const char* address = value_of(kMasterAddress)) {
    launch->master_address = launch->master_port != 0 ? address : "";
    return;
  }
  const char* folder = launcher.folder == nullptr ? nullptr : value_of(launcher.folder);
  if (folder != nullptr && launch->local_world_size == launch->world_size) {
    launch->meeting_file = std::string(folder) + "/farandole";
    return;
  }
  const char* hosts = value_of("SLURM_STEP_NODELIST");
  if (launcher.name != kSrun || hosts == nullptr) hosts = value_of("SLURM_JOB_NODELIST");
  if (hosts != nullptr && launch->master_port != 0) launch->master_address = first_host_of(hosts);
}

Launch launch_by(const Launcher& launcher, const char* size) {
  Launch launch;
  launch.launcher = launcher.name;
  launch.rank = number_of(launcher.rank, value_of(launcher.rank));
  launch.world_size = number_of(size, value_of(size));
  check_rank(launcher.rank, size, launch);
  launch.local_rank = number_or(launcher.local_rank, launch.rank);
  const char* tasks = value_of("SLURM_STEP_TASKS_PER_NODE");
  if (launcher.local_world_size != nullptr) {
    launch.local_world_size = number_or(launcher.local_world_size, launch.world_size);
  } else {
    const int found = tasks == nullptr ? 0 : tasks_on_node(tasks, number_or("SLURM_NODEID", 0));
    launch.local_world_size = found > 0 ? found : launch.world_size;
  }
  find_meeting_place(launcher, &launch);
  return launch;
}

}  // namespace

Launch find_launch() {
  if (value_of(kRank)) return launch_by_torchrun();
  for (const Launcher& launcher : kLaunchers) {
    const char* const size = size_variable(launcher);
    if (size == nullptr) continue;
    const int world_size = number_of(size, value_of(size));
    if (world_size > 1 && !is_of_hydra(launcher, world_size)) return launch_by(launcher, size);
  }
  if (value_of(kWorldSize)) return launch_by_torchrun();
  Launch alone;
  alone.launcher = "alone";
  return alone;
}

void throw_no_meeting_place(const Launch& launch) {
  throw InvalidArgument(
      "meeting-place-unknown",
      "init_process_group() cannot find where the " + std::to_string(launch.world_size) +
          " ranks of " + launch.launcher + " meet.",
      "they may be on several hosts, and nothing in the environment has the address of rank 0.",
      "set MASTER_ADDR (the host of rank 0) and MASTER_PORT (a free port) on all ranks, with "
      "mpirun's option -x or -genv; or pip install mpi4py, for Python; or pass rank, world_size "
      "and init_method.");
}

std::string find_attempt() {
  const char* count = value_of("TORCHELASTIC_RESTART_COUNT");
  return count == nullptr ? "" : count;
}

void go_alone() {
  log(LogLevel::kInfo, "no launcher and no arguments: this process is rank 0 of 1, alone.");
}

}  // namespace farandole
