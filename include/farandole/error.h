// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// What an error is about, for programs that act on it. What is unknown stays empty.
struct Fault {
  std::vector<int> ranks;  ///< at fault, counted in the group, ascending
  std::string collective;  ///< the operation's name, as "all_reduce", "send", "backward" or "step"
};

/// Base of everything Farandole throws. The text has three parts, one a line: what happened
/// (operation, group, rank), `why:` and `fix:`. It ends with the message's name in brackets, which
/// is its heading in docs/errors.md: every message is explained there.
class FARANDOLE_API Error : public std::runtime_error {
 public:
  /// `name` is as "no-gradient": lower-case words and hyphens, the same for each `what`.
  Error(const std::string& name, const std::string& what, const std::string& why,
        const std::string& fix, Fault fault = {});
  ~Error() override;

  /// The ranks at fault, counted in the group: dead, late, aborting, failed, or with another call
  /// than rank 0. Empty if they are unknown.
  const std::vector<int>& ranks() const { return fault_->ranks; }
  /// The first of ranks().
  std::optional<int> rank() const;
  /// The operation's name, as "all_reduce", "send", "backward" or "step". Empty if it is unknown.
  const std::string& collective() const { return fault_->collective; }

 private:
  std::shared_ptr<const Fault> fault_;  // never null; shared, so that copies cannot throw
};

/// Misuse that the caller can see alone: a bad count, dtype, rank or option. Nothing was sent.
class FARANDOLE_API InvalidArgument : public Error {
 public:
  using Error::Error;
  ~InvalidArgument() override;
};

/// Base of what goes wrong between ranks or below them. The group cannot be used any more, unless
/// the derived class says otherwise.
class FARANDOLE_API CommError : public Error {
 public:
  using Error::Error;
  ~CommError() override;
};

/// The ranks called different collectives. Thrown on every rank before memory is touched; the group
/// stays usable.
class FARANDOLE_API MismatchError : public CommError {
 public:
  using CommError::CommError;
  ~MismatchError() override;
};

/// The backward passes of the ranks do not belong together: an exception left one, or parameters
/// got no gradient. Thrown on every rank at the end of that backward; gradients are undefined until
/// the next one. The group stays usable.
class FARANDOLE_API BackwardError : public CommError {
 public:
  using CommError::CommError;
  ~BackwardError() override;
};

/// The ranks cannot take one optimizer step together: an exception left one, their hyperparameters
/// differ, or a parameter has a gradient on some ranks only. Thrown on every rank (one that met an
/// exception gets its own); parameters stay the same on all ranks. The group stays usable.
class FARANDOLE_API StepError : public CommError {
 public:
  using CommError::CommError;
  ~StepError() override;
};

/// A peer died or left the group while this rank waited for it.
class FARANDOLE_API PeerFailure : public CommError {
 public:
  using CommError::CommError;
  ~PeerFailure() override;
};

/// A peer did not arrive in time; the text names it and the last collective that it reached.
class FARANDOLE_API TimeoutError : public CommError {
 public:
  using CommError::CommError;
  ~TimeoutError() override;
};

/// The group was aborted, here or by a peer that met an error.
class FARANDOLE_API AbortedError : public CommError {
 public:
  using CommError::CommError;
  ~AbortedError() override;
};

/// A system call failed (memory, descriptors, sockets); the text names the call and errno. What was
/// asked for was not made. A group that existed before stays usable, unless the thread for an
/// asynchronous collective could not be started: then the group is over on all ranks.
class FARANDOLE_API SystemError : public CommError {
 public:
  using CommError::CommError;
  ~SystemError() override;
};

/// A checkpoint could not be saved or loaded: a file or folder cannot be written or read, is
/// damaged, incomplete, or of a newer format. What was saved before is as it was, and so is what
/// was to be loaded into.
class FARANDOLE_API CheckpointError : public Error {
 public:
  using Error::Error;
  ~CheckpointError() override;
};

/// This build or machine cannot do what was asked; the text says what can.
class FARANDOLE_API NotSupported : public Error {
 public:
  using Error::Error;
  ~NotSupported() override;
};

}  // namespace farandole
