// SPDX-License-Identifier: Apache-2.0
#include "farandole/checkpoint/load_checkpoint.h"

#include <ATen/ops/equal.h>
#include <ATen/record_function.h>
#include <c10/core/GradMode.h>

#include <chrono>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/format/json.h"
#include "checkpoint/training/holder_states.h"
#include "checkpoint/training/optimizer_states.h"
#include "checkpoint/training/parameter_names.h"
#include "checkpoint/training/rng_states.h"
#include "checkpoint/training/values_json.h"
#include "checkpoint/training/writers.h"
#include "comm/lost_rank.h"
#include "farandole/checkpoint/checkpoint_reader.h"
#include "farandole/checkpoint/slice_list.h"
#include "farandole/error.h"
#include "log.h"

namespace farandole {

using checkpoint::Json;
using checkpoint::JsonError;
using checkpoint::ModelTensor;
using checkpoint::Ranks;

namespace {

using Change = std::function<void()>;

/// How long a folder that rank 0 sees may take to be seen by others, as on NFS.
constexpr std::chrono::seconds kVisibleWithin{10};

CheckpointError other_model(const std::string& has, const std::string& why,
                            const std::string& fix) {
  return {"checkpoint-other-model", "the checkpoint has " + has + ".", why + ".", fix};
}

/// What is read, and how it is taken over. Local.
class Loading {
 public:
  Loading(const CheckpointReader& reader, Ranks ranks)
      : reader_(reader), ranks_(ranks), json_(Json::parse(reader.values())) {}

  void take_models(const NamedParts<torch::nn::Module>& models) {
    for (const auto& [name, model] : models.by_name()) {
      take_model(checkpoint::model_prefix(name), *model);
    }
  }

  void take_optimizers(const Training& training) {
    const auto known = checkpoint::parameter_names(training.model);
    const Json& saved = json_.at("optimizers");
    for (const auto& [name, optimizer] : training.optimizer.by_name()) {
      const Json* const own = saved.find(checkpoint::optimizer_prefix(name));
      if (own == nullptr) {
        std::string there;
        for (const auto& [prefix, each] : saved.object()) {
          there += (there.empty() ? "'" : ", '") + prefix.substr(0, prefix.find(':')) + "'";
        }
        throw other_model("no optimizer '" + name + "'",
                          "it has " + (there.empty() ? "none" : there),
                          "pass optimizers by the names under which they were saved.");
      }
      changes.push_back(checkpoint::load_optimizer(*optimizer, known, reader_, ranks_, *own));
    }
  }

  const Json& state(const char* name) const {
    const Json* const state = json_.at("states").find(name);
    if (state != nullptr) return *state;
    throw other_model("no state of a " + std::string(name), "it was not given to save_checkpoint()",
                      "leave " + std::string(name) + " out, and begin with a new one.");
  }

  CheckpointValues values() const {
    return checkpoint::values_of(json_.at("values"),
                                 [this](const std::string& key) { return reader_.read(key); });
  }

  std::vector<Change> changes;

 private:
  void take_model(const std::string& prefix, const torch::nn::Module& model) {
    const std::vector<ModelTensor> tensors = checkpoint::tensors_of(model, prefix);
    std::set<std::string> keys;
    for (const ModelTensor& each : tensors) keys.insert(each.key);
    if (const Json* const names = json_.at("models").find(prefix)) {
      for (const Json& name : names->array()) {
        if (keys.count(prefix + name.string("a name")) > 0) continue;
        throw other_model("'" + prefix + name.string() + "' of a model",
                          "the model to load into has nothing of that name",
                          "load it into the model that was saved.");
      }
    }
    std::map<const void*, std::string> seen;
    for (const ModelTensor& each : tensors) {
      const auto [first, is_new] = seen.try_emplace(each.tensor.unsafeGetTensorImpl(), each.key);
      if (is_new) {
        take_tensor(each);
      } else {
        check_tied(saved_key(first->second), saved_key(each.key));
      }
    }
  }

  /// Of a tied tensor, which is saved once.
  std::string saved_key(const std::string& key) const {
    const Json* const alias = json_.at("aliases").find(key);
    return alias != nullptr ? alias->string("an alias") : key;
  }

  /// What is one tensor in the model may be two of the same value.
  void check_tied(const std::string& first, const std::string& other) const {
    const auto& entries = reader_.entries();
    if (first == other || entries.count(other) == 0) return;
    const auto bytes = [this](const std::string& key) {
      return reader_.read(key).contiguous().view({-1}).view(at::kByte);
    };
    if (entries.at(first).shape == entries.at(other).shape &&
        at::equal(bytes(first), bytes(other))) {
      return;
    }
    throw other_model("other values in '" + first + "' than in '" + other + "'",
                      "both are one tensor in the model, which cannot have two values",
                      "load it into a model where they are two tensors.");
  }

  void take_tensor(const ModelTensor& each) {
    check_tensor(each.key, each.tensor);
    check_apart(each.key, each.tensor);
    const std::string key = saved_key(each.key);
    const auto found = reader_.entries().find(key);
    if (found == reader_.entries().end()) {
      throw other_model("no tensor '" + key + "'", "the model has one",
                        "load it into the model that was saved.");
    }
    const CheckpointReader::Entry& entry = found->second;
    const at::IntArrayRef shape(entry.shape);
    if (shape != each.tensor.sizes()) {
      throw differs(key, "shape", c10::str(shape), c10::str(each.tensor.sizes()));
    }
    if (entry.dtype != each.tensor.scalar_type() && !is_count_of(key, each)) {
      throw differs(key, "dtype", c10::toString(entry.dtype),
                    c10::toString(each.tensor.scalar_type()));
    }
    reader_.check(key, ranks_.rank, ranks_.world_size);
    changes.emplace_back(
        [this, key, into = each.tensor.detach()] { reader_.read_into(key, into); });
  }

  /// LibTorch's to(dtype) makes num_batches_tracked a floating-point number, Python's does not.
  bool is_count_of(const std::string& key, const ModelTensor& each) const {
    if (each.is_parameter || each.tensor.dim() != 0) return false;
    const std::string name = "num_batches_tracked";  // which bfloat16 rounds from 257 on
    if (each.key.size() >= name.size() &&
        each.key.compare(each.key.size() - name.size(), name.size(), name) == 0) {
      return true;
    }
    const at::Tensor value = reader_.read(key);
    const at::Tensor converted = value.to(each.tensor.scalar_type());
    return at::equal(converted.to(value.scalar_type()), value);
  }

  static CheckpointError differs(const std::string& key, const std::string& what,
                                 const std::string& saved, const std::string& own) {
    return other_model("'" + key + "' with the " + what + " " + saved,
                       "the model's has the " + what + " " + own,
                       "load it into the model that was saved, and convert that afterwards.");
  }

  const CheckpointReader& reader_;
  const Ranks ranks_;
  const Json json_;
};

/// A load of all ranks.
class JointLoad {
 public:
  JointLoad(std::string call, std::string path, const Group& group)
      : call_(std::move(call)),
        path_(std::move(path)),
        ranks_(checkpoint::writer_of(path_, group)) {
    std::string error;
    try {
      ranks_->wait();  // for what this program saves there
    } catch (const std::exception& met) {
      error = met.what();
    }
    ranks_->agree(call_, error);
  }

  /// Whether rank 0 finds a checkpoint. Collective.
  bool is_there() const {
    std::string found;
    together([&] {
      if (ranks_->rank() == 0 && checkpoint::has_checkpoint(path_)) found = "yes";
    });
    const bool is_there = !ranks_->all_gather(found)[0].empty();
    if (!is_there && ranks_->rank() == 0) {
      log(LogLevel::kInfo, call_ + " starts anew: there is no checkpoint at '" + path_ + "'.");
    }
    return is_there;
  }

  /// Reads all, agrees, changes. Collective.
  CheckpointValues run(const Training& training, bool rng) const {
    const std::unique_ptr<CheckpointReader> reader = opened();
    std::optional<Loading> loading;
    CheckpointValues values;
    std::optional<LRSchedulerState> scheduler;
    std::optional<GradScalerState> scaler;
    std::optional<SamplerState> sampler;
    Change set_rng = [] {};
    together([&] {
      loading.emplace(*reader, Ranks{ranks_->rank(), ranks_->world_size()});
      loading->take_models(training.model);
      loading->take_optimizers(training);
      if (training.scheduler != nullptr) {
        scheduler = checkpoint::scheduler_state_of(loading->state("scheduler"),
                                                   training.scheduler->state());
      }
      if (training.scaler != nullptr)
        scaler = checkpoint::scaler_state_of(loading->state("scaler"), *training.scaler);
      if (training.sampler != nullptr) {
        sampler = checkpoint::sampler_state_of(loading->state("sampler"));
      }
      values = loading->values();
      if (rng) set_rng = checkpoint::load_rng(*reader, ranks_->rank(), ranks_->world_size());
    });
    // What may refuse a state comes first, and is put back if any does, on any rank.
    const std::vector<Change> undo = undoing(training);
    try {
      together([&] {
        if (scheduler) training.scheduler->load_state(*scheduler);
        if (scaler) training.scaler->load_state(*scaler);
        if (sampler) training.sampler->check_state(*sampler);
      });
    } catch (...) {
      for (const Change& change : undo) change();
      throw;
    }
    if (sampler) training.sampler->load_state(*sampler);
    change_all(loading->changes);
    set_rng();
    if (ranks_->rank() == 0) log(LogLevel::kInfo, call_ + " loaded '" + reader->folder() + "'.");
    return values;
  }

 private:
  /// All has been compared: only what has become of the files since can fail. What comes after a
  /// change that failed is done all the same, for it may be collective.
  void change_all(const std::vector<Change>& changes) const {
    together([&] {
      std::string failure;
      for (const Change& change : changes) {
        try {
          change();
        } catch (const std::exception& met) {
          if (failure.empty()) failure = met.what();
        }
      }
      if (failure.empty()) return;
      throw CheckpointError(
          "checkpoint-torn",
          "the checkpoint at '" + path_ + "' was taken only in part on rank " +
              std::to_string(ranks_->rank()) + ".",
          "all ranks had compared it with its checksums; then: " + failure,
          "load another checkpoint before training goes on; let nothing change or delete the one "
          "that is loaded.");
    });
  }

  /// All ranks do it, or all throw. Collective at the end.
  void together(const std::function<void()>& body) const {
    std::exception_ptr own;
    std::string error;
    try {
      body();
    } catch (const JsonError& met) {
      const CheckpointError typed("checkpoint-unknown",
                                  "the checkpoint at '" + path_ + "' could not be taken.",
                                  std::string(met.what()) + ".",
                                  "load what save_checkpoint() has saved, into what was given to "
                                  "it.");
      own = std::make_exception_ptr(typed);
      error = typed.what();
    } catch (const std::exception& met) {
      own = std::current_exception();
      error = met.what();
    }
    try {
      ranks_->agree(call_, error);
    } catch (const CheckpointError&) {
      if (!own) throw;
    }
    if (own) std::rethrow_exception(own);
  }

  /// The checkpoint that rank 0 finds, on all ranks. Another job that saves there may remove it
  /// before all have opened it: then a newer one. Collective.
  std::unique_ptr<CheckpointReader> opened() const {
    for (;;) {
      std::unique_ptr<CheckpointReader> reader;
      together([&] {
        if (ranks_->rank() == 0) reader = std::make_unique<CheckpointReader>(path_);
      });
      const std::string folder = ranks_->all_gather(reader ? reader->folder() : "")[0];
      try {
        together([&] {
          if (!reader) reader = once_visible(folder);
        });
        return reader;
      } catch (const CheckpointError&) {
        std::error_code error;
        const bool was_removed =
            folder != path_ && !std::filesystem::exists(folder, error) && !error;
        if (ranks_->all_gather(was_removed ? "removed" : "")[0].empty()) throw;
      }
    }
  }

  static std::unique_ptr<CheckpointReader> once_visible(const std::string& folder) {
    const auto deadline = std::chrono::steady_clock::now() + kVisibleWithin;
    const std::filesystem::path index = std::filesystem::path(folder) / checkpoint::kIndexName;
    std::error_code error;  // no permission, say: whoever opens it says why
    while (!std::filesystem::exists(index, error) && !error &&
           std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return std::make_unique<CheckpointReader>(folder);
  }

  static std::vector<Change> undoing(const Training& training) {
    std::vector<Change> undo;
    if (auto* const scheduler = training.scheduler) {
      undo.emplace_back([scheduler, state = scheduler->state()] { scheduler->load_state(state); });
    }
    if (auto* const scaler = training.scaler) {
      undo.emplace_back([scaler, state = scaler->state()] { scaler->load_state(state); });
    }
    return undo;
  }

  const std::string call_;
  const std::string path_;
  const std::shared_ptr<CheckpointWriter> ranks_;
};

}  // namespace

CheckpointValues load_checkpoint(const std::string& path, const Training& training,
                                 const LoadCheckpointOptions& options) {
  RECORD_USER_SCOPE("farandole:load_checkpoint");
  const c10::NoGradGuard no_grad;
  const comm::CalledFunction called("load_checkpoint()");
  return JointLoad("load_checkpoint()", path, options.group).run(training, options.rng);
}

std::optional<CheckpointValues> resume_or_start(const std::string& path, const Training& training,
                                                const LoadCheckpointOptions& options) {
  RECORD_USER_SCOPE("farandole:load_checkpoint");
  const c10::NoGradGuard no_grad;
  const comm::CalledFunction called("resume_or_start()");
  const JointLoad load("resume_or_start()", path, options.group);
  if (!load.is_there()) return std::nullopt;
  return load.run(training, options.rng);
}

}  // namespace farandole
