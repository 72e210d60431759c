// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "farandole/export.h"

namespace farandole {

/// The state of a scheduler: numbers by the names that they have in Python's state_dict(), lists as
/// they are, single numbers and truth values as lists of one. Integers are exact up to 2^53. Names
/// of a part of another scheduler begin with "_schedulers.<index>.". It can be compared, printed,
/// changed, and written as JSON with 17 digits.
using LRSchedulerState = std::map<std::string, std::vector<double>>;

/// The variables of a scheduler and their names in its state; they outlive it.
class FARANDOLE_API SchedulerFields {
 public:
  void add(const std::string& name, double& value);
  /// An integer of at least `least`.
  void add(const std::string& name, int64_t& value, int64_t least = INT64_MIN);
  void add(const std::string& name, bool& value);
  /// A list that keeps its length.
  void add(const std::string& name, std::vector<double>& values);
  /// A list of any length.
  void add(const std::string& name, std::vector<int64_t>& values);

  using Get = std::function<std::vector<double>()>;
  using Fits = std::function<bool(const std::vector<double>&)>;
  using Set = std::function<void(const std::vector<double>&)>;
  void add(const std::string& name, Get get, Fits fits, Set set);

  /// Those of a part, whose names begin with `prefix`.
  void add_part(const std::string& prefix, const SchedulerFields& part);

  LRSchedulerState read() const;
  /// Throws InvalidArgument, and changes nothing, unless the state has all of these names and no
  /// others, each with numbers that fit.
  void write(const LRSchedulerState& state) const;

 private:
  struct Field {
    Get get;
    Fits fits;
    Set set;
  };
  std::map<std::string, Field> fields_;
};

}  // namespace farandole
