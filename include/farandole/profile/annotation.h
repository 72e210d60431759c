// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/record_function.h>

#include <string>
#include <utility>

namespace farandole {

/// Names what the program does in its scope, as farandole.profiler.annotate() of Python:
///
///     { Annotation annotation("Forward"); loss = model(batch); }
///
/// A recorder (recorder.h) and torch's profiler show it; without them it costs some nanoseconds.
/// Threads: ends on the thread on which it began.
class Annotation {
 public:
  explicit Annotation(std::string name) : range_(at::RecordScope::USER_SCOPE) {
    if (range_.isActive()) range_.before(std::move(name));
  }
  Annotation(const Annotation&) = delete;
  Annotation& operator=(const Annotation&) = delete;

 private:
  at::RecordFunction range_;
};

}  // namespace farandole
