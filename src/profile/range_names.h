// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace farandole::profiler {

/// What a range of at::RecordFunction is in a trace; see trace_lines.h.
struct RangeLabel {
  std::string category;
  std::string name;
  std::string optimizer = {};  ///< the class of an optimizer
};

/// torch's own ranges are known by their names. `name`: of one that is_shown().
RangeLabel label_of_range(const std::string& name);
/// False for ranges that spans of other kinds show with more.
bool is_shown(std::string_view name);
/// Whether a loop waits for its next batch in it.
bool is_data_wait(std::string_view name);
/// Whether it is a step of an optimizer.
bool is_step(std::string_view name);

}  // namespace farandole::profiler
