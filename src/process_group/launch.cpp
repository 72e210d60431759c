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

const char* value_of(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

const char* require(const Launcher& launcher, const char* variable) {
  if (const char* value = value_of(variable)) return value;
  const char* set = value_of(launcher.rank) ? launcher.rank : launcher.world_size;
  throw InvalidArgument(std::string("the environment variable ") + variable + " is not set.",
                        std::string(set) + " is, so this process seems to be one of " +
                            launcher.name + "'s, which needs " + launcher.rank + ", " +
                            launcher.world_size + ", " + launcher.master_address + " and " +
                            launcher.master_port + ".",
                        std::string("start it with ") + launcher.name + ", set " + variable +
                            " on every rank, or unset " + set + " to run alone.");
}

int number_of(const char* variable, const char* text) {
  int number = 0;
  const char* end = text + std::strlen(text);
  const auto [rest, error] = std::from_chars(text, end, number);
  if (error == std::errc() && rest == end && number >= 0) return number;
  throw InvalidArgument(std::string("the environment variable ") + variable + " is '" + text + "'.",
                        "it must be a number, 0 or larger.",
                        std::string("set ") + variable + " to one on every rank.");
}

int number_or(const char* variable, int fallback) {
  const char* text = value_of(variable);
  return text == nullptr ? fallback : number_of(variable, text);
}

void check_rank(const Launcher& launcher, const Launch& launch) {
  if (launch.rank < launch.world_size) return;
  throw InvalidArgument(std::string(launcher.rank) + " is " + std::to_string(launch.rank) +
                            " and " + launcher.world_size + " is " +
                            std::to_string(launch.world_size) + ".",
                        "ranks count from 0 to the world size less one.",
                        "set both as the launcher would, on every rank.");
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

void say_alone() {
  log(LogLevel::kInfo, "no launcher and no arguments: this process is rank 0 of 1, alone.");
}

}  // namespace farandole
