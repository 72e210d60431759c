// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/save_checkpoint.h"

#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>

#include "checkpoint/format/json.h"
#include "checkpoint/training/holder_states.h"
#include "checkpoint/training/last_checkpoint.h"
#include "checkpoint/training/optimizer_states.h"
#include "checkpoint/training/parameter_names.h"
#include "checkpoint/training/rng_states.h"
#include "checkpoint/training/values_json.h"
#include "checkpoint/training/writers.h"
#include "comm/lost_rank.h"
#include "farandole/checkpoint/slice_list.h"
#include "farandole/error.h"

namespace farandole {

using checkpoint::Json;
using checkpoint::ModelTensor;

namespace {

void check_count(const char* name, int64_t value, int64_t least) {
  if (value >= least) return;
  throw InvalidArgument(
      "checkpoint-count",
      "save_checkpoint() got " + std::string(name) + "=" + std::to_string(value) + ".",
      "it is a whole number, at least " + std::to_string(least) + ".",
      "pass such a number, or leave it out.");
}

/// What a checkpoint has: slices of this rank, and JSON.
class Contents {
 public:
  explicit Contents(SliceList& slices) : slices_(slices) {}

  /// Every tensor once, however many names it has.
  void add_models(const NamedParts<torch::nn::Module>& models) {
    for (const auto& [name, model] : models.by_name()) {
      const std::string prefix = checkpoint::model_prefix(name);
      std::map<const void*, std::string> known;
      Json::Array names;
      for (const ModelTensor& each : checkpoint::tensors_of(*model, prefix)) {
        names.emplace_back(each.key.substr(prefix.size()));
        is_on_gpu_ = is_on_gpu_ || each.tensor.is_cuda();
        const auto [found, is_new] = known.try_emplace(each.tensor.unsafeGetTensorImpl(), each.key);
        if (!is_new) {
          aliases_.emplace_back(each.key, found->second);
          continue;
        }
        check_tensor(each.key, each.tensor);
        check_apart(each.key, each.tensor);
        if (each.is_parameter) {
          slices_.add_shared(each.key, each.tensor);
        } else if (slices_.rank() == 0) {
          slices_.add_own(each.key, each.tensor);
        }
      }
      models_.emplace_back(prefix, std::move(names));
    }
  }

  /// Collective if one is sharded.
  void add_optimizers(const Training& training) {
    const auto known = checkpoint::parameter_names(training.model);
    for (const auto& [name, optimizer] : training.optimizer.by_name()) {
      const std::string prefix = checkpoint::optimizer_prefix(name);
      optimizers_.emplace_back(prefix,
                               checkpoint::save_optimizer(*optimizer, prefix, known, slices_));
    }
  }

  void add_states(const Training& training) {
    if (training.scheduler != nullptr) {
      states_.emplace_back("scheduler", checkpoint::json_of(training.scheduler->state()));
    }
    if (training.scaler != nullptr) {
      states_.emplace_back("scaler", checkpoint::json_of(*training.scaler));
    }
    if (training.sampler != nullptr) {
      states_.emplace_back("sampler",
                           checkpoint::json_of(training.sampler->state(training.consumed)));
    }
  }

  void add_values(const CheckpointValues& values) {
    values_ = checkpoint::json_of(values, [this](const std::string& at, const at::Tensor& tensor) {
      std::string key = slices_.new_key(at);
      if (slices_.rank() == 0) slices_.add_own(key, tensor);
      return key;
    });
  }

  bool is_on_gpu() const { return is_on_gpu_; }

  std::string text() {
    return Json(Json::Object{{"aliases", std::move(aliases_)},
                             {"models", std::move(models_)},
                             {"optimizers", std::move(optimizers_)},
                             {"states", std::move(states_)},
                             {"values", std::move(values_)}})
        .dump();
  }

 private:
  SliceList& slices_;
  Json::Object aliases_, models_, optimizers_, states_;
  Json values_ = Json::Object();
  bool is_on_gpu_ = false;
};

/// Throws on all ranks where one has other tensors: each writes a part of those of all.
void check_same(const std::vector<std::string>& texts) {
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank] == texts[0]) continue;
    throw InvalidArgument(
        "checkpoint-ranks-differ",
        "save_checkpoint() got other arguments or tensors on rank " + std::to_string(rank) +
            " than on rank 0.",
        "step, keep and asynchronous must be the same; and each rank writes its part of "
        "parameters, and of the state of optimizers that are not sharded, whose names, shapes, "
        "strides and dtypes must be the same.",
        "pass the same on every rank.");
  }
}

/// All ranks do it, or all throw. Collective at the end.
void together(const CheckpointWriter& writer, const std::function<void()>& body) {
  try {
    body();
  } catch (const CommError&) {
    throw;  // the other ranks have it too
  } catch (const std::exception& met) {
    const std::exception_ptr own = std::current_exception();
    try {
      writer.agree("save_checkpoint()", met.what());
    } catch (const CheckpointError&) {
    }
    std::rethrow_exception(own);
  }
  writer.agree("save_checkpoint()", "");
}

std::string name_of(std::optional<int64_t> step) {
  if (!step) return "";
  char name[32];
  std::snprintf(name, sizeof(name), "step-%08lld", static_cast<long long>(*step));
  return name;
}

}  // namespace

PendingCheckpoint save_checkpoint(const std::string& path, const Training& training,
                                  const SaveCheckpointOptions& options) {
  RECORD_USER_SCOPE("farandole:save_checkpoint");
  const c10::NoGradGuard no_grad;
  const comm::CalledFunction called("save_checkpoint()");
  const auto writer = checkpoint::writer_of(path, options.group);
  SliceList slices(writer->rank(), writer->world_size());
  Contents contents(slices);
  std::string values;
  together(*writer, [&] {
    if (options.step) check_count("step", *options.step, 0);
    check_count("keep", options.keep, 0);
    contents.add_models(training.model);
    contents.add_states(training);
    contents.add_values(options.values);
    if (options.rng) checkpoint::save_rng(contents.is_on_gpu(), slices);
  });
  together(*writer, [&] {  // no rank is missing in what is collective there
    contents.add_optimizers(training);
    values = contents.text();
  });
  check_same(writer->all_gather(name_of(options.step) + " " + std::to_string(options.keep) +
                                (options.asynchronous ? " asynchronous\n" : "\n") +
                                slices.common()));
  PendingCheckpoint save = writer->save(
      slices.own(), values, {name_of(options.step), options.keep, options.asynchronous});
  checkpoint::note_last(save);
  return save;
}

}  // namespace farandole
