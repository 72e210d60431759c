// SPDX-License-Identifier: Apache-2.0
#include "farandole/error.h"

#include <utility>

namespace farandole {

Error::Error(const std::string& name, const std::string& what, const std::string& why,
             const std::string& fix, Fault fault)
    : std::runtime_error(what + "\nwhy: " + why + "\nfix: " + fix + " [" + name + "]"),
      fault_(std::make_shared<const Fault>(std::move(fault))) {}

std::optional<int> Error::rank() const {
  if (ranks().empty()) return std::nullopt;
  return ranks().front();
}

// Out of line, so that each type has one definition and exceptions cross library borders.
Error::~Error() = default;
InvalidArgument::~InvalidArgument() = default;
CommError::~CommError() = default;
MismatchError::~MismatchError() = default;
BackwardError::~BackwardError() = default;
StepError::~StepError() = default;
PeerFailure::~PeerFailure() = default;
TimeoutError::~TimeoutError() = default;
AbortedError::~AbortedError() = default;
SystemError::~SystemError() = default;
CheckpointError::~CheckpointError() = default;
NotSupported::~NotSupported() = default;

}  // namespace farandole
