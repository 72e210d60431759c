// SPDX-License-Identifier: Apache-2.0
#include "profile/range_names.h"

namespace farandole::profiler {
namespace {

constexpr std::string_view kOwn = "farandole:";
constexpr std::string_view kShardedStep = "farandole:sharded_step";
constexpr std::string_view kSave = "farandole:save_checkpoint";
constexpr std::string_view kLoad = "farandole:load_checkpoint";
constexpr std::string_view kForward = "DistributedDataParallel.forward";
constexpr std::string_view kOptimizerStep = "Optimizer.step#";      // of torch.optim
constexpr std::string_view kDataLoader = "enumerate(DataLoader)#";  // of torch.utils.data

bool begins_with(std::string_view text, std::string_view with) {
  return text.substr(0, with.size()) == with;
}

}  // namespace

RangeLabel label_of_range(const std::string& name) {
  if (name == kForward) return {"forward", "forward"};
  if (name == kSave) return {"checkpoint", "save"};
  if (name == kLoad) return {"checkpoint", "load"};
  if (name == kShardedStep) return {"optimizer", "sharded_step"};
  if (is_data_wait(name)) return {"data", "dataloader"};
  if (begins_with(name, kOptimizerStep)) {
    const std::string of = name.substr(kOptimizerStep.size());  // "AdamW.step"
    return {"optimizer", "optimizer_step", of.substr(0, of.rfind('.'))};
  }
  return {"annotation", name};
}

bool is_shown(std::string_view name) {
  return !begins_with(name, kOwn) || name == kShardedStep || name == kSave || name == kLoad;
}

bool is_data_wait(std::string_view name) { return begins_with(name, kDataLoader); }

bool is_step(std::string_view name) {
  return begins_with(name, kOptimizerStep) || name == kShardedStep;
}

}  // namespace farandole::profiler
