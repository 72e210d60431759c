// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_loader.h"

#include "comm/nccl/plugin.h"
#include "comm/plugin_library.h"
#include "farandole/error.h"

namespace farandole::comm {

void refuse_nccl(const std::string& why) {
  throw NotSupported("nccl-unavailable", "NCCL cannot be used in this process.", why,
                     "install a torch with CUDA, which brings NCCL, or set FARANDOLE_NCCL_LIBRARY "
                     "to the path of a libnccl.so.2; build Farandole where it finds nccl.h and "
                     "cuda_runtime.h; tensors on the CPU need none of this.");
}

std::unique_ptr<Communicator> make_nccl_communicator(Store& store,
                                                     const CommunicatorOptions& options) {
  static const auto* const plugin = static_cast<const nccl::Plugin*>(open_plugin(
      path_beside_this_library("libfarandole_cuda.so"), nccl::kPluginSymbol, refuse_nccl));
  return plugin->make(store, options);
}

}  // namespace farandole::comm
