// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "farandole/comm/backends.h"
#include "farandole/comm/store.h"
#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm::hosts {

/// The ranks of `candidates` divided into islands: ranks that have proved that they can map each
/// other's memory. Each host of the result is one island, and a part of a host of `candidates`.
///
/// A host's lowest rank listens on a Unix socket under a random name, which it publishes. Each
/// other rank of that host connects, shows the name as a token, and passes the descriptor of a
/// page of its own together with the secret that the page holds. The lowest rank checks that the
/// caller is of its user, maps the page, and finds the secret there. A rank that cannot connect
/// publishes why. Then the lowest rank publishes the ranks that have proved it, and those that have
/// not begin again among themselves. So all ranks get the same islands. A rank calls the store a
/// few times, and once an island.
///
/// One INFO line says which ranks of a host do not share memory, and why.
///
/// Collective. Throws what make_communicator() lists.
FARANDOLE_API Topology find_islands(Store& store, const CommunicatorOptions& options,
                                    const Topology& candidates);

}  // namespace farandole::comm::hosts
