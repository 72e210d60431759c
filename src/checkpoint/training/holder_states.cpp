// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/holder_states.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/training/values_json.h"
#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

constexpr std::string_view kParts = "_schedulers.";

/// Names of what is a list in Python, of whatever length.
bool is_list(const std::string& name) {
  static const std::set<std::string> lists{"base_lrs",      "_last_lr",    "max_lrs",
                                           "min_lrs",       "_milestones", "max_momentums",
                                           "base_momentums"};
  return lists.count(name) > 0;
}

/// Whole numbers are integers in Python too.
Json number_json(double number) {
  constexpr double kExact = 9007199254740992;  // 2^53
  if (std::floor(number) == number && std::fabs(number) < kExact) {
    return static_cast<int64_t>(number);
  }
  return json_of(number);
}

/// Python counts the milestones of a MultiStepLR.
Json counter_json(const std::vector<double>& milestones) {
  std::vector<std::pair<double, int64_t>> counts;
  for (const double each : milestones) {
    if (counts.empty() || counts.back().first != each) counts.emplace_back(each, 0);
    ++counts.back().second;
  }
  Json::Array pairs;
  for (const auto& [milestone, count] : counts) {
    pairs.emplace_back(Json::Array{number_json(milestone), count});
  }
  return Json::Object{{"!counter", std::move(pairs)}};
}

/// What a ReduceLROnPlateau calls two of its options in Python, and what is true and false there.
struct Word {
  const char* name;
  const char* in_python;
  const char* yes;
  const char* no;
};
constexpr Word kWords[] = {{"is_max", "mode", "max", "min"},
                           {"is_threshold_abs", "threshold_mode", "abs", "rel"}};

const Word* word_of(std::string_view name) {
  for (const Word& word : kWords) {
    if (name == word.name) return &word;
  }
  return nullptr;
}

void add_field(const std::string& name, const std::vector<double>& numbers, Json::Object& object) {
  if (const Word* const word = word_of(name)) {
    object.emplace_back(word->in_python, numbers.at(0) != 0 ? word->yes : word->no);
  } else if (name == "milestones") {
    object.emplace_back(name, counter_json(numbers));
  } else if (!is_list(name) && numbers.size() == 1) {
    object.emplace_back(name, number_json(numbers.front()));
  } else if (name != "best") {  // which is infinite in Python before there is one
    Json::Array list;
    for (const double number : numbers) list.push_back(number_json(number));
    object.emplace_back(name, std::move(list));
  }
}

std::vector<double> numbers_of(const Json& json) {
  std::vector<double> numbers;
  const Json* const counter = json.is_object() ? json.find("!counter") : nullptr;
  if (counter != nullptr) {
    for (const Json& pair : counter->array()) {
      if (pair.array().size() != 2) throw JsonError("a count has not two numbers");
      const int64_t count = pair.array()[1].integer("a count");
      constexpr int64_t kMost = 1000;
      if (count < 0 || count > kMost) throw JsonError("a count is too large");
      numbers.insert(numbers.end(), static_cast<size_t>(count), number_of(pair.array()[0]));
    }
  } else if (json.is_array()) {
    for (const Json& each : json.array()) numbers.push_back(number_of(each));
  } else {
    numbers.push_back(number_of(json));
  }
  return numbers;
}

/// As a LambdaLR.
bool has_only_rates(const LRSchedulerState& state) {
  static const std::set<std::string> rates{"lr", "_last_lr", "last_epoch", "_step_count",
                                           "base_lrs"};
  return std::all_of(state.begin(), state.end(),
                     [](const auto& field) { return rates.count(field.first) > 0; });
}

/// Of what a scheduler of Python keeps in the optimizer's groups, or only in its arguments.
std::optional<std::vector<double>> kept_elsewhere(const Json& json, std::string_view name,
                                                  const std::vector<double>& present) {
  static const std::set<std::string_view> of_one_cycle{
      "max_lrs",  "min_lrs",   "max_momentums", "base_momentums",
      "momentum", "is_linear", "pct_start",     "three_phase"};
  if (name == "lr" && json.find("_last_lr") != nullptr) return numbers_of(json.at("_last_lr"));
  if (json.find("_schedule_phases") != nullptr && of_one_cycle.count(name) > 0) return present;
  if (name == "best") return std::vector<double>();
  const Json* const parts = json.find(kParts.substr(0, kParts.size() - 1));
  if (name == "last_epoch" && parts != nullptr && !parts->array().empty()) {  // a ChainedScheduler
    return numbers_of(parts->array()[0].at("last_epoch"));
  }
  return std::nullopt;
}

std::vector<double> field_of(const Json& json, std::string_view name,
                             const std::vector<double>& present) {
  const Word* const word = word_of(name);
  const Json* const found = json.find(word != nullptr ? word->in_python : name);
  if (found == nullptr) {
    if (auto other = kept_elsewhere(json, name, present)) return *std::move(other);
    throw JsonError("the state of the scheduler has no '" + std::string(name) + "'");
  }
  if (word != nullptr) return {found->string(word->in_python) == word->yes ? 1.0 : 0.0};
  std::vector<double> numbers = numbers_of(*found);
  if (name == "best" && !std::isfinite(numbers.at(0))) numbers.clear();
  return numbers;
}

/// The object of the part that a name with dots leads to, which becomes the name within it.
const Json& scheduler_part(const Json& json, std::string_view& name) {
  if (name.substr(0, kParts.size()) != kParts) return json;
  const Json::Array& parts = json.at(kParts.substr(0, kParts.size() - 1)).array();
  const std::string_view rest = name.substr(kParts.size());
  const size_t dot = rest.find('.');
  const auto index = std::stoul(std::string(rest.substr(0, dot)));
  if (index >= parts.size()) throw JsonError("the scheduler that was saved has fewer parts");
  name = rest.substr(dot + 1);
  return scheduler_part(parts[index], name);
}

}  // namespace

Json json_of(const LRSchedulerState& state) {
  Json::Object object;
  std::vector<LRSchedulerState> parts;
  for (const auto& [name, numbers] : state) {
    if (name.compare(0, kParts.size(), kParts) != 0) {
      add_field(name, numbers, object);
      continue;
    }
    const std::string rest = name.substr(kParts.size());
    const size_t dot = rest.find('.');
    const size_t index = std::stoul(rest.substr(0, dot));
    if (parts.size() <= index) parts.resize(index + 1);
    parts[index][rest.substr(dot + 1)] = numbers;
  }
  if (has_only_rates(state)) {
    const auto groups = state.at("_last_lr").size();
    object.emplace_back("lr_lambdas", Json::Array(groups));  // which Python's LambdaLR takes out
  }
  if (parts.empty()) return object;
  Json::Array list;
  for (const LRSchedulerState& part : parts) list.push_back(json_of(part));
  object.emplace_back(std::string(kParts.substr(0, kParts.size() - 1)), std::move(list));
  return object;
}

LRSchedulerState scheduler_state_of(const Json& json, const LRSchedulerState& present) {
  LRSchedulerState state;
  for (const auto& [name, numbers] : present) {
    std::string_view field = name;
    const Json& part = scheduler_part(json, field);
    state[name] = field_of(part, field, numbers);
  }
  return state;
}

Json json_of(const GradScaler& scaler) {
  if (!scaler.is_enabled()) return Json::Object();  // as in Python
  const GradScalerState state = scaler.state();
  return Json::Object{{"scale", json_of(state.scale)},
                      {"growth_factor", json_of(state.growth_factor)},
                      {"backoff_factor", json_of(state.backoff_factor)},
                      {"growth_interval", state.growth_interval},
                      {"_growth_tracker", state.growth_tracker}};
}

GradScalerState scaler_state_of(const Json& json, const GradScaler& present) {
  if (json.object("the state of a scaler").empty()) {
    if (!present.is_enabled()) return present.state();
    throw CheckpointError("checkpoint-disabled-scaler",
                          "the checkpoint has the state of a disabled scaler.",
                          "the one to load into is enabled, and needs a scale.",
                          "leave scaler out, and begin with a new one.");
  }
  return {number_of(json.at("scale")), number_of(json.at("growth_factor")),
          number_of(json.at("backoff_factor")),
          static_cast<int64_t>(number_of(json.at("growth_interval"))),
          static_cast<int64_t>(number_of(json.at("_growth_tracker")))};
}

Json json_of(const SamplerState& state) {
  Json::Object object;
  for (const auto& [name, number] : state) object.emplace_back(name, number);
  return object;
}

SamplerState sampler_state_of(const Json& json) {
  SamplerState state;
  for (const auto& [name, number] : json.object("the state of a sampler")) {
    state[name] = number.integer(name.c_str());
  }
  return state;
}

}  // namespace farandole::checkpoint
