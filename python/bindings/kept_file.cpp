// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>  // NOLINT(modernize-deprecated-headers): on_exit() is in no other
#include <unistd.h>

#include <memory>
#include <new>
#include <string>
#include <utility>

#include "bindings.h"

namespace farandole::python {
namespace {

namespace py = pybind11;

struct KeptFile {
  std::string file;
  std::string folder;
  pid_t owner;
};

/// exit(3) calls it with the exit status, which Python's atexit does not tell. Python has ended.
void remove_after_success(int status, void* data) {
  const auto* kept = static_cast<const KeptFile*>(data);
  const bool has_succeeded = (status & 0xff) == 0;
  if (!has_succeeded || getpid() != kept->owner) return;
  unlink(kept->file.c_str());
  rmdir(kept->folder.c_str());  // fails while other processes have files in it
}

}  // namespace

void bind_kept_file(py::module_& module) {
  module.def(
      "remove_after_success",
      [](std::string file, std::string folder) {
        auto kept =
            std::make_unique<KeptFile>(KeptFile{std::move(file), std::move(folder), getpid()});
        if (on_exit(remove_after_success, kept.get()) != 0) throw std::bad_alloc();
        kept.release();  // used until the end of the process
      },
      py::arg("file"), py::arg("folder"),
      "Remove a file, and its folder if that is empty then, when this process ends with status 0.");
}

}  // namespace farandole::python
