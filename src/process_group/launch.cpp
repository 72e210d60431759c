// SPDX-License-Identifier: Apache-2.0
#include "process_group/launch.h"

#include <array>
#include <charconv>
#include <cstdlib>
#include <cstring>

#include "farandole/error.h"
#include "log.h"

namespace farandole {
namespace {

/// What a launcher tells its processes. A new launcher is one row in kLaunchers.
struct Launcher {
  const char* name;
  const char* rank;
  const char* world_size;
  const char* local_rank;        // optional in the environment
  const char* local_world_size;  // optional in the environment
  const char* master_address;
  const char* master_port;
};
constexpr std::array<Launcher, 1> kLaunchers{{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
     "MASTER_PORT"},
}};

/// A launcher that Farandole does not support yet: its ranks would each train alone.
struct Stranger {
  const char* name;
  const char* sign;  // set in each process that it started, and nowhere else
  const char* rank;
  std::array<const char*, 2> world_size;  // the first that is set counts; may be null
};
constexpr std::array<Stranger, 4> kStrangers{{
    {"OpenMPI's mpirun", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", {"OMPI_COMM_WORLD_SIZE"}},
    {"mpirun (PMI)", "PMI_SIZE", "PMI_RANK", {"PMI_SIZE"}},
    {"MVAPICH's mpirun", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_RANK", {"MV2_COMM_WORLD_SIZE"}},
    // SLURM_NTASKS is set in the shells of sbatch and salloc too, which are no task of a step.
    {"srun", "SLURM_STEP_ID", "SLURM_PROCID", {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}},
}};

const char* value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

const char* require(const Launcher& launcher, const char* variable) {
  if (const char* value = value_of(variable)) return value;
  const char* set = value_of(launcher.rank) ? launcher.rank : launcher.world_size;
  throw InvalidArgument(
      "variable-missing", std::string("the environment variable ") + variable + " is not set.",
      std::string(set) + " is, so this process seems to be started by " + launcher.name +
          ", which sets " + launcher.rank + ", " + launcher.world_size + ", " +
          launcher.master_address + " and " + launcher.master_port + ".",
      std::string("start it with ") + launcher.name + ", set " + variable +
          " on every rank, or unset " + set + " to run alone.");
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

void check_rank(const Launcher& launcher, const Launch& launch) {
  if (launch.rank < launch.world_size) return;
  throw InvalidArgument("launcher-rank",
                        std::string(launcher.rank) + " is " + std::to_string(launch.rank) +
                            " and " + launcher.world_size + " is " +
                            std::to_string(launch.world_size) + ".",
                        "ranks count from 0 to the world size minus one.",
                        "set both on every rank as a launcher would.");
}

Launch launch_by(const Launcher& launcher) {
  Launch launch;
  launch.launcher = launcher.name;
  launch.rank = number_of(launcher.rank, require(launcher, launcher.rank));
  launch.world_size = number_of(launcher.world_size, require(launcher, launcher.world_size));
  check_rank(launcher, launch);
  launch.local_rank = number_or(launcher.local_rank, launch.rank);
  launch.local_world_size = number_or(launcher.local_world_size, launch.world_size);
  launch.master_address = require(launcher, launcher.master_address);
  launch.master_port = number_of(launcher.master_port, require(launcher, launcher.master_port));
  const char* agent = value_of("TORCHELASTIC_USE_AGENT_STORE");
  launch.store_is_served = agent != nullptr && std::strcmp(agent, "True") == 0;
  return launch;
}

/// The variable that tells how many processes it started; null if it did not start this one.
const char* size_variable(const Stranger& stranger) {
  if (!value_of(stranger.sign) || !value_of(stranger.rank)) return nullptr;
  for (const char* variable : stranger.world_size) {
    if (variable != nullptr && value_of(variable)) return variable;
  }
  return nullptr;
}

void check_stranger(const Stranger& stranger) {
  const char* variable = size_variable(stranger);
  if (variable == nullptr || std::atoi(value_of(variable)) <= 1) return;
  throw InvalidArgument(
      "foreign-launcher",
      std::string("init_process_group() cannot find the other ranks of ") + stranger.name + ".",
      std::string(variable) + " is " + value_of(variable) + " and " + stranger.rank + " is " +
          value_of(stranger.rank) +
          ", but only torchrun's variables are supported: each process would train alone.",
      "start the script with torchrun --nproc-per-node=<ranks of a host>; or pass rank (that of " +
          std::string(stranger.rank) + "), world_size (that of " + variable +
          ") and init_method=\"tcp://<host of rank 0>:<port>\"; or unset " + stranger.sign +
          " to run alone.");
}

}  // namespace

Launch find_launch() {
  for (const Launcher& launcher : kLaunchers) {
    if (value_of(launcher.rank) || value_of(launcher.world_size)) return launch_by(launcher);
  }
  Launch alone;
  alone.launcher = "alone";
  return alone;
}

std::string find_attempt() {
  const char* count = value_of("TORCHELASTIC_RESTART_COUNT");
  return count == nullptr ? "" : count;
}

void go_alone() {
  for (const Stranger& stranger : kStrangers) check_stranger(stranger);
  log(LogLevel::kInfo, "no launcher and no arguments: this process is rank 0 of 1, alone.");
}

}  // namespace farandole
