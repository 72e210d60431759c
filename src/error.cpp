// SPDX-License-Identifier: Apache-2.0
#include "farandole/error.h"

namespace farandole {

// Out of line, so that each type has one home and exceptions cross library borders.
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
NotSupported::~NotSupported() = default;

}  // namespace farandole
