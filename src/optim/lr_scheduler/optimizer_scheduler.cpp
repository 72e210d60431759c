// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/lr_scheduler/optimizer_scheduler.h"

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/ivalue.h>
#include <torch/serialize/archive.h>

#include <string>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

constexpr const char* kArchiveName = "lr_scheduler";

}  // namespace

OptimizerScheduler::OptimizerScheduler(ScheduledOptimizer optimizer)
    : optimizer_(std::move(optimizer)), last_lr_(optimizer_.lrs()) {}

OptimizerScheduler::~OptimizerScheduler() = default;

void OptimizerScheduler::name_fields(SchedulerFields& fields) {
  fields.add("last_epoch", last_epoch_);
  fields.add("_last_lr", last_lr_);
}

SchedulerFields OptimizerScheduler::fields() {
  SchedulerFields fields;
  name_fields(fields);
  fields.add(
      "lr", [this] { return optimizer_.lrs(); },
      [this](const std::vector<double>& lrs) { return lrs.size() == optimizer_.groups(); },
      [this](const std::vector<double>& lrs) { optimizer_.set_lrs(lrs); });
  return fields;
}

LRSchedulerState OptimizerScheduler::state() const {
  return const_cast<OptimizerScheduler*>(this)->fields().read();  // which changes nothing
}

void OptimizerScheduler::load_state(const LRSchedulerState& state) { fields().write(state); }

void OptimizerScheduler::save(torch::serialize::OutputArchive& archive) const {
  c10::Dict<std::string, c10::List<double>> numbers;
  for (const auto& [name, values] : state()) numbers.insert(name, c10::List<double>(values));
  archive.write(kArchiveName, c10::IValue(numbers));
}

void OptimizerScheduler::load(torch::serialize::InputArchive& archive) {
  c10::IValue found;
  if (!archive.try_read(kArchiveName, found) || !found.isGenericDict()) {
    throw InvalidArgument("scheduler-archive",
                          "a scheduler was loaded from an archive without a scheduler.",
                          std::string("there is no '") + kArchiveName + "' in it.",
                          "load an archive that save() of a scheduler has written.");
  }
  LRSchedulerState state;
  for (const auto& entry : found.toGenericDict()) {
    state[entry.key().toStringRef()] = entry.value().toDoubleVector();
  }
  load_state(state);
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive,
                                            const OptimizerScheduler& scheduler) {
  scheduler.save(archive);
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive,
                                           OptimizerScheduler& scheduler) {
  scheduler.load(archive);
  return archive;
}

}  // namespace farandole
