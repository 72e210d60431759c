// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/plugin.h"

#include "comm/nccl/nccl_communicator.h"
#include "farandole/export.h"
#include "farandole/version.h"

extern "C" FARANDOLE_API const farandole::comm::nccl::Plugin* farandole_cuda_plugin() {
  static const farandole::comm::nccl::Plugin plugin{farandole::version(),
                                                    farandole::comm::nccl::NcclCommunicator::make};
  return &plugin;
}
