// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/start.h"

#include <algorithm>
#include <functional>
#include <future>
#include <memory>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "comm/mpi/check.h"
#include "comm/mpi/runtime.h"
#include "comm/shm/bootstrap/bootstrap.h"
#include "comm/shm/shared_memory_communicator.h"
#include "comm/start_thread.h"
#include "farandole/error.h"

namespace farandole::comm::mpi {
namespace {

using std::chrono::milliseconds;

/// Where a rank is in its MPI.
struct Place {
  int rank = -1;
  int size = 0;
  std::string job;
  bool saw_an_end = false;  ///< of a process of its job

  std::string encode() const {
    return std::to_string(rank) + " " + std::to_string(size) + " " + job +
           (saw_an_end ? " 1" : " 0");
  }
  static Place decode(std::istream& text) {
    Place place;
    text >> place.rank >> place.size >> place.job >> place.saw_an_end;
    return place;
  }
};

/// Processes of other hosts are not seen from here, whatever their pids.
Topology with_own_processes(Topology topology) {
  const int own = topology.host_of_rank[static_cast<size_t>(topology.rank)];
  for (size_t rank = 0; rank < topology.processes.size(); ++rank) {
    if (topology.host_of_rank[rank] != own) topology.processes[rank].clear();
  }
  return topology;
}

/// Rank 0 collects the places of all ranks and publishes the list.
std::vector<Place> share_places(Store& store, shm::Bootstrap& bootstrap, const Topology& topology,
                                const Place& own) {
  const auto key = [&](int rank) { return bootstrap.key("mpi-" + std::to_string(rank)); };
  std::string list;
  if (topology.rank != 0) {
    store.set(key(topology.rank), own.encode());
    list = bootstrap.get("mpi");
  } else {
    list = own.encode();
    for (int rank = 1; rank < topology.world_size; ++rank) {
      std::optional<std::string> text;
      bootstrap.await({rank}, [&](milliseconds limit) {
        text = store.get(key(rank), limit);
        return text.has_value();
      });
      list += "\n" + *text;
    }
    bootstrap.set("mpi", list);
  }
  std::istringstream lines(list);
  std::vector<Place> places;
  places.reserve(static_cast<size_t>(topology.world_size));
  for (int rank = 0; rank < topology.world_size; ++rank) places.push_back(Place::decode(lines));
  return places;
}

/// All ranks see the same places, so all throw or none does.
void check_one_world(const std::string& group, const Topology& topology,
                     const std::vector<Place>& places, const Setting& setting) {
  std::set<int> ranks;
  std::string world;
  bool is_one = true;
  for (size_t rank = 0; rank < places.size(); ++rank) {
    const Place& each = places[rank];
    is_one = is_one && ranks.insert(each.rank).second && each.size == places.front().size &&
             each.job == places.front().job;
    world += (rank == 0 ? "" : ", ") + topology.name_of(static_cast<int>(rank)) + " is process " +
             std::to_string(each.rank) + " of " + std::to_string(each.size);
    if (rank == 7 && places.size() > 8) {
      world += ", and so on";
      break;
    }
  }
  if (is_one) return;
  throw NotSupported(
      "mpi-world",
      "group '" + group + "' cannot " + setting.use + ": its " +
          std::to_string(topology.world_size) + " ranks are not processes of one MPI job.",
      "in MPI_COMM_WORLD, " + world + ".",
      std::string("start all ranks with one mpirun (of the MPI that Farandole was built with) or "
                  "srun, or unset ") +
          setting.variable + ": under torchrun MPI knows of one process alone.");
}

MPI_Comm make_communicator(const Topology& topology, const std::vector<Place>& places) {
  std::vector<int> ranks;
  ranks.reserve(places.size());
  for (const Place& each : places) ranks.push_back(each.rank);
  // Groups that overlap may be made on several threads at once: their tags differ.
  const size_t token = std::hash<std::string>()(topology.session);
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  MPI_Comm made = MPI_COMM_NULL;
  check(MPI_Comm_group(MPI_COMM_WORLD, &world), "MPI_Comm_group");
  check(MPI_Group_incl(world, topology.world_size, ranks.data(), &group), "MPI_Group_incl");
  [[maybe_unused]] const bool is_whole = std::none_of(
      places.begin(), places.end(), [](const Place& place) { return place.saw_an_end; });
#if defined(MPI_ERR_SESSION)  // MPI 4
  if (!is_whole) {  // MPI_Comm_create_group() fails, though the process need not be in this group
    check(MPI_Comm_create_from_group(group, topology.session.c_str(), MPI_INFO_NULL,
                                     MPI_ERRORS_RETURN, &made),
          "MPI_Comm_create_from_group");
  }
#endif
  if (made == MPI_COMM_NULL) {
    check(MPI_Comm_create_group(MPI_COMM_WORLD, group, static_cast<int>(token % 32767), &made),
          "MPI_Comm_create_group");
  }
  MPI_Group_free(&group);
  MPI_Group_free(&world);
  return made;
}

/// MPI's call knows no timeout and cannot be left. So a thread makes it, which a rank that gives up
/// leaves behind.
MPI_Comm make_communicator(shm::Bootstrap& bootstrap, const Topology& topology,
                           const std::vector<Place>& places) {
  const auto made = std::make_shared<std::promise<MPI_Comm>>();
  auto result = made->get_future();
  ++Runtime::calls_under_way();
  try {
    start_thread("farandole mpi", "MPI", [made, topology, places] {
      try {
        made->set_value(make_communicator(topology, places));
      } catch (...) {
        made->set_exception(std::current_exception());
      }
      --Runtime::calls_under_way();
    }).detach();
  } catch (const SystemError&) {
    --Runtime::calls_under_way();
    throw;
  }
  std::vector<int> others;
  for (int rank = 0; rank < topology.world_size; ++rank) {
    if (rank != topology.rank) others.push_back(rank);
  }
  bootstrap.await(others, [&](milliseconds limit) {
    return result.wait_for(limit) == std::future_status::ready;
  });
  return result.get();
}

}  // namespace

MPI_Comm join_communicator(Store& store, shm::Bootstrap& bootstrap, const Topology& topology,
                           const Setting& setting) {
  std::vector<Place> places;
  try {
    const Runtime& runtime = Runtime::get();
    places = share_places(
        store, bootstrap, topology,
        {runtime.rank(), runtime.size(), runtime.job(), Runtime::has_lost_a_process()});
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
  check_one_world(bootstrap.group(), topology, places, setting);
  try {
    return make_communicator(bootstrap, topology, places);
  } catch (const std::exception& error) {
    bootstrap.tell(error);
    throw;
  }
}

Start meet(Store& store, const CommunicatorOptions& options) {
  const Topology topology = shm::SharedMemoryCommunicator::discover(store, options);
  const Topology watched = with_own_processes(topology);
  shm::Liveness liveness(watched);
  shm::Bootstrap bootstrap(store, options.name, watched, liveness, shm::formation_timeout(options));
  const MPI_Comm communicator =
      join_communicator(store, bootstrap, topology, {"FARANDOLE_BACKEND", "use backend 'mpi'"});
  return {topology, std::move(liveness), communicator};
}

}  // namespace farandole::comm::mpi
