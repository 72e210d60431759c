// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl/plugin.h"

#include "comm/nccl/nccl_api.h"
#include "comm/nccl/nccl_communicator.h"
#include "farandole/export.h"
#include "farandole/version.h"

extern "C" FARANDOLE_API const void* farandole_cuda_plugin() {
  using farandole::comm::nccl::NcclApi;
  using farandole::comm::nccl::NcclCommunicator;
  static const farandole::comm::nccl::Plugin plugin{
      farandole::version(), NcclCommunicator::make,
      [](const std::string& library) { NcclApi::get(library); }};
  return &plugin;
}
