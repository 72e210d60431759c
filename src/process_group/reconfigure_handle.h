// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// What a rank calls itself to those who put a new group together:
/// "farandole:<rank>:<generation>:<instance>". The generation is kUnformed before it has peers,
/// kFirst with those that it was made with, then the uuid of the last reconfigure(); the instance
/// tells objects apart that share all that.
struct ReconfigureHandle {
  static constexpr const char* kUnformed = "new";
  static constexpr const char* kFirst = "first";

  int rank;
  std::string generation;
  std::string instance;

  std::string text() const;
  /// Throws InvalidArgument for what text() cannot have made.
  static ReconfigureHandle parse(const std::string& text);
  /// A random instance.
  static std::string new_instance();
};

/// The order in which ranks are numbered whose handles came as a set: first those that have peers
/// already, then the others, each by rank.
FARANDOLE_API std::vector<std::string> in_rank_order(std::vector<std::string> handles);

/// Throws InvalidArgument unless there are handles, all different and all of text().
FARANDOLE_API void check_handles(const std::vector<std::string>& handles);

}  // namespace farandole
