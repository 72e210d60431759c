// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/plugin.h"

#include "comm/mpi/mpi_communicator.h"
#include "comm/mpi/mpi_stream.h"
#include "farandole/export.h"
#include "farandole/version.h"

extern "C" FARANDOLE_API const void* farandole_mpi_plugin() {
  static const farandole::comm::mpi::Plugin plugin{farandole::version(),
                                                   farandole::comm::mpi::MpiCommunicator::make,
                                                   farandole::comm::mpi::open_streams};
  return &plugin;
}
