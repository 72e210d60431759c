// SPDX-License-Identifier: Apache-2.0
#include "comm/nccl_loader.h"

#include "comm/nccl/plugin.h"
#include "comm/plugin_library.h"
#include "farandole/error.h"

namespace farandole::comm {
namespace {

const nccl::Plugin& plugin() {
  static const auto* const opened = static_cast<const nccl::Plugin*>(open_plugin(
      path_beside_this_library("libfarandole_cuda.so"), nccl::kPluginSymbol, refuse_nccl));
  return *opened;
}

/// The second of the three parts of its text.
std::string reason_of(const Error& error) {
  const std::string text = error.what();
  const size_t begin = text.find("\nwhy: ") + 6;
  return text.substr(begin, text.find("\nfix: ") - begin);
}

}  // namespace

void refuse_nccl(const std::string& why) {
  throw NotSupported("nccl-unavailable", "NCCL cannot be used in this process.", why,
                     "install a torch with CUDA, which brings NCCL, or set FARANDOLE_NCCL_LIBRARY "
                     "to the path of a libnccl.so.2; build Farandole where it finds nccl.h and "
                     "cuda_runtime.h; or do without: FARANDOLE_DEVICE_BACKEND=auto.");
}

std::unique_ptr<Communicator> make_nccl_communicator(Store& store,
                                                     const CommunicatorOptions& options) {
  return plugin().make(store, options);
}

std::string obstacle_to_nccl(const Config& config) {
  try {
    plugin().find(config.nccl_library);
  } catch (const NotSupported& error) {
    return reason_of(error);
  } catch (const InvalidArgument& error) {
    return reason_of(error);
  }
  return {};
}

}  // namespace farandole::comm
