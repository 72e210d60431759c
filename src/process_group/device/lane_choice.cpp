// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/lane_choice.h"

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/error.h"
#include "process_group/device/device_identity.h"

namespace farandole {
namespace {

/// What each rank tells the others. Texts end with a zero, and are cut.
struct Vote {
  DeviceBackendChoice setting;
  char obstacle[500];  ///< why the rank cannot do without staging; empty if it can
  char device[200];    ///< its identity; empty if it is unknown
};
static_assert(std::is_trivially_copyable_v<Vote>, "ranks exchange its bytes");

template <size_t N>
void set(char (&text)[N], const std::string& value) {
  std::memcpy(text, value.data(), std::min(value.size(), N - 1));
}

const char* name_of(DeviceBackendChoice setting) {
  switch (setting) {
    case DeviceBackendChoice::kNccl:
      return "nccl";
    case DeviceBackendChoice::kStaged:
      return "staged";
    default:
      return "auto";
  }
}

/// torch's own library knows the memory of CUDA alone; who names another one knows what for.
std::string obstacle_on(c10::Device device, const Config& config) {
  if (!device.is_cuda() && config.nccl_library.empty()) {
    return "NCCL does not serve " + c10::DeviceTypeName(device.type(), /*lower_case=*/true) +
           " devices.";
  }
  return comm::obstacle_to(comm::backend_for(comm::MemoryKind::kDevice), config);
}

std::vector<Vote> exchange(comm::Communicator& host, c10::Device device, const Config& config) {
  Vote mine{};
  mine.setting = config.device_backend;
  if (config.device_backend == DeviceBackendChoice::kAuto) {
    set(mine.obstacle, obstacle_on(device, config));
    if (mine.obstacle[0] == '\0') set(mine.device, identity_of(device));
  }
  std::vector<Vote> all(static_cast<size_t>(host.world_size()));
  host.all_gather(&mine, all.data(), sizeof(Vote), comm::DataType::kUInt8);
  return all;
}

void check_settings(const comm::Communicator& host, const std::vector<Vote>& votes) {
  const auto differs = [&](const Vote& vote) { return vote.setting != votes.front().setting; };
  const auto other = std::find_if(votes.begin(), votes.end(), differs);
  if (other == votes.end()) return;
  const int rank = static_cast<int>(other - votes.begin());
  throw MismatchError(
      "device-backends",
      "the ranks of group '" + host.name() + "' have different values of FARANDOLE_DEVICE_BACKEND.",
      host.topology().describe(0) + " has " + name_of(votes.front().setting) + ", and " +
          host.topology().describe(rank) + " has " + name_of(other->setting) + ".",
      "set the same value on all ranks, or unset it everywhere.", host.topology().fault_of({rank}));
}

/// Why ranks cannot do without staging; empty if they can.
std::string find_obstacle(const std::vector<Vote>& votes) {
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    if (votes[rank].obstacle[0] == '\0') continue;
    return "rank " + std::to_string(rank) + " cannot use NCCL: " + votes[rank].obstacle;
  }
  for (size_t rank = 0; rank < votes.size(); ++rank) {
    const char* const device = votes[rank].device;
    if (device[0] == '\0') continue;
    for (size_t other = 0; other < rank; ++other) {
      if (std::strcmp(device, votes[other].device) != 0) continue;
      return "ranks " + std::to_string(other) + " and " + std::to_string(rank) +
             " share one device, which NCCL refuses.";
    }
  }
  return {};
}

}  // namespace

LaneChoice choose_lane(comm::Communicator& host, c10::Device device, const Config& config) {
  const std::vector<Vote> votes = exchange(host, device, config);
  check_settings(host, votes);
  switch (config.device_backend) {
    case DeviceBackendChoice::kNccl:
      return {false, {}};
    case DeviceBackendChoice::kStaged:
      return {true, "FARANDOLE_DEVICE_BACKEND is staged."};
    default: {
      const std::string obstacle = find_obstacle(votes);
      return {!obstacle.empty(), obstacle};
    }
  }
}

}  // namespace farandole
