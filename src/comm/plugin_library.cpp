// SPDX-License-Identifier: Apache-2.0
#include "comm/plugin_library.h"

#include <dlfcn.h>

#include "farandole/version.h"

namespace farandole::comm {

std::string path_beside_this_library(const std::string& file) {
  Dl_info own{};
  std::string folder = ".";
  if (::dladdr(reinterpret_cast<const void*>(&path_beside_this_library), &own) != 0) {
    const std::string library = own.dli_fname;
    const size_t slash = library.rfind('/');
    if (slash != std::string::npos) folder = library.substr(0, slash);
  }
  return folder + "/" + file;
}

const void* open_plugin(const std::string& path, const char* symbol,
                        const std::function<void(const std::string& why)>& refuse) {
  // What plug-ins are linked to cannot be initialized twice in a process: the library stays.
  void* const library = ::dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    const char* const reason = ::dlerror();
    refuse("its plug-in cannot be loaded: " + (reason == nullptr ? path : std::string(reason)) +
           ".");
  }
  const auto entry = reinterpret_cast<const void* (*)()>(::dlsym(library, symbol));
  if (entry == nullptr) refuse("the library " + path + " is no plug-in of Farandole.");
  const void* const plugin = entry();
  const std::string built_with = *static_cast<const char* const*>(plugin);
  if (built_with != version()) {
    refuse("the plug-in " + path + " belongs to Farandole " + built_with + ", this is " +
           version() + ".");
  }
  return plugin;
}

}  // namespace farandole::comm
