// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/scheduler_fields.h"

#include <cmath>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

using Numbers = std::vector<double>;

bool is_integer(double number) {
  constexpr double kMostExact = 9007199254740992;  // 2^53
  return std::trunc(number) == number && std::abs(number) <= kMostExact;
}

InvalidArgument does_not_fit(const std::string& what) {
  return {"scheduler-state", "a scheduler got a state that is not its own: " + what + ".",
          "a state has the names and numbers of one class of scheduler, and one number for each "
          "parameter group in lists of them.",
          "load what state() or save() of the same class has written, for the same groups."};
}

}  // namespace

void SchedulerFields::add(const std::string& name, double& value) {
  add(
      name, [&value] { return Numbers{value}; },
      [](const Numbers& numbers) { return numbers.size() == 1; },
      [&value](const Numbers& numbers) { value = numbers.front(); });
}

void SchedulerFields::add(const std::string& name, int64_t& value, int64_t least) {
  add(
      name, [&value] { return Numbers{static_cast<double>(value)}; },
      [least](const Numbers& numbers) {
        return numbers.size() == 1 && is_integer(numbers.front()) &&
               static_cast<int64_t>(numbers.front()) >= least;
      },
      [&value](const Numbers& numbers) { value = static_cast<int64_t>(numbers.front()); });
}

void SchedulerFields::add(const std::string& name, bool& value) {
  add(
      name, [&value] { return Numbers{value ? 1.0 : 0.0}; },
      [](const Numbers& numbers) { return numbers == Numbers{0} || numbers == Numbers{1}; },
      [&value](const Numbers& numbers) { value = numbers.front() != 0; });
}

void SchedulerFields::add(const std::string& name, std::vector<double>& values) {
  add(
      name, [&values] { return values; },
      [&values](const Numbers& numbers) { return numbers.size() == values.size(); },
      [&values](const Numbers& numbers) { values = numbers; });
}

void SchedulerFields::add(const std::string& name, std::vector<int64_t>& values) {
  add(
      name, [&values] { return Numbers(values.begin(), values.end()); },
      [](const Numbers& numbers) {
        for (const double number : numbers) {
          if (!is_integer(number)) return false;
        }
        return true;
      },
      [&values](const Numbers& numbers) {
        values.clear();
        for (const double number : numbers) values.push_back(static_cast<int64_t>(number));
      });
}

void SchedulerFields::add(const std::string& name, Get get, Fits fits, Set set) {
  fields_[name] = {std::move(get), std::move(fits), std::move(set)};
}

void SchedulerFields::add_part(const std::string& prefix, const SchedulerFields& part) {
  for (const auto& [name, field] : part.fields_) fields_[prefix + name] = field;
}

LRSchedulerState SchedulerFields::read() const {
  LRSchedulerState state;
  for (const auto& [name, field] : fields_) state[name] = field.get();
  return state;
}

void SchedulerFields::write(const LRSchedulerState& state) const {
  for (const auto& [name, numbers] : state) {
    const auto found = fields_.find(name);
    if (found == fields_.end()) throw does_not_fit("it has '" + name + "'");
    if (!found->second.fits(numbers)) throw does_not_fit("'" + name + "' does not fit");
  }
  for (const auto& [name, field] : fields_) {
    if (state.count(name) == 0) throw does_not_fit("it lacks '" + name + "'");
  }
  for (const auto& [name, field] : fields_) field.set(state.at(name));
}

}  // namespace farandole
