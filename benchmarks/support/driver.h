// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

namespace farandole::benchmark {

/// A rank's line to the Python script that started it: questions come and answers go, a line each.
/// Between two questions the rank sleeps in read(), so that it takes no core from what is measured.
class Driver {
 public:
  /// Connects to the script's Unix socket at `path` and says which rank this is.
  Driver(const std::string& path, int rank);
  ~Driver();
  Driver(const Driver&) = delete;
  Driver& operator=(const Driver&) = delete;

  /// The next line without its end; nothing when the script is done.
  std::optional<std::string> next_question();
  void answer(std::string line);

 private:
  int socket_;
};

/// What a program does that a script starts once for each rank.
using Serve = void (*)(const std::string& socket, const std::string& folder, int rank,
                       int world_size);
/// The main() of such a program: its arguments are SOCKET FOLDER RANK WORLD_SIZE. Errors are
/// printed and make it fail.
int run_program(int argc, char** argv, Serve serve);

}  // namespace farandole::benchmark
