// SPDX-License-Identifier: Apache-2.0
#include "farandole/debugger/hook.h"

#include <ATen/ops/scalar_tensor.h>
#include <c10/core/GradMode.h>
#include <c10/core/ScalarType.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/dtype_names.h"
#include "checkpoint/format/json.h"
#include "debugger/measures.h"
#include "debugger/record_file.h"
#include "farandole/error.h"
#include "farandole/process_group/collectives.h"
#include "log.h"
#include "process_group/launch.h"

namespace farandole::debugger {
namespace {

using checkpoint::Json;

constexpr const char* kGlobal = "GLOBAL";
constexpr const char* kModes[] = {"TRAIN", "EVAL", "PREDICT", kGlobal};

/// Which tensors belong to the collections that every hook has, as regular expressions of Python.
const std::map<std::string, std::string>& expressions() {
  static const auto* const all = new std::map<std::string, std::string>{
      {"weights", "^(?!gradient).*weight"},
      {"biases", "^(?!gradient).*bias"},
      {"gradients", "^gradient"},
      {"losses", "[Ll]oss_(?!input).*output"},
      {"scalars", "^scalar/"},
  };
  return *all;
}

bool ends_with(const std::string& text, const std::string& with) {
  return text.size() >= with.size() &&
         text.compare(text.size() - with.size(), with.size(), with) == 0;
}

/// "Net" of "models::NetImpl", as Python's twin is called.
std::string class_of(const torch::nn::Module& module) {
  std::string name = module.name();
  const size_t scope = name.rfind("::");
  if (scope != std::string::npos) name = name.substr(scope + 2);
  return ends_with(name, "Impl") ? name.substr(0, name.size() - 4) : name;
}

double seconds_since_1970() {
  const auto since = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(since).count();
}

void check(const HookOptions& options) {
  check_reductions(options.reductions);
  for (const std::string& name : options.collections) {
    if (name == "weights" || name == "biases" || name == "gradients") continue;
    throw InvalidArgument("debugger-collection", "there is no collection '" + name + "'.",
                          "there are weights, biases and gradients.",
                          "ask for one of these; losses and scalars are always saved.");
  }
  if (options.save_interval >= 1) return;
  throw InvalidArgument(
      "debugger-save-interval",
      "SaveConfig got save_interval=" + std::to_string(options.save_interval) + ".",
      "it is the number of steps between two that are saved.",
      "pass a whole number of at least 1.");
}

}  // namespace

struct Hook::Impl {
  explicit Impl(HookOptions given);

  bool is_saved() const;
  void save(const std::string& name, const at::Tensor& tensor,
            const std::vector<std::string>& reductions, bool with_elements);
  void add_name(const std::string& collection, const std::string& name);
  void flush();
  void write(const std::function<void(RecordFile&)>& lines);
  RecordFile& file();
  Json collections_json() const;

  const HookOptions options;
  int rank = 0;
  int workers = 1;
  bool writes = true;
  std::vector<std::pair<std::string, at::Tensor>> parameters;  ///< by "<class>_<name>"
  std::string mode = kGlobal;
  std::map<std::string, int64_t> steps;  ///< the present one of each mode; none before the first
  std::map<std::string, std::set<std::string>> names;  ///< by collection
  bool collections_changed = true;
  std::optional<RecordFile> record_file;
  std::optional<int64_t> incomplete;  ///< a step with lines
  Json::Object line;                  ///< tensors that were taken since the last one
  std::vector<std::pair<std::string, at::Tensor>> raw;
};

Hook::Impl::Impl(HookOptions given) : options(std::move(given)) {
  check(options);
  if (options.group || is_initialized()) {
    rank = farandole::rank(options.group);
    workers = farandole::world_size(options.group);
  } else {
    rank = find_launch().rank;
    workers = find_launch().world_size;
  }
  writes = options.all_workers || rank == 0;
  if (!options.all_workers) workers = 1;
  steps = last_steps(options.folder);
}

bool Hook::Impl::is_saved() const {
  const auto found = steps.find(mode);
  const int64_t step = found == steps.end() ? 0 : found->second;
  return writes && step >= options.start_step && step < options.end_step &&
         step % options.save_interval == 0;
}

/// Takes a tensor, of which the program may go on to change the elements.
void Hook::Impl::save(const std::string& name, const at::Tensor& tensor,
                      const std::vector<std::string>& reductions, bool with_elements) {
  const at::NoGradGuard no_grad;
  Json::Array shape;
  for (const int64_t size : tensor.sizes()) shape.emplace_back(size);
  // A string_view in torch 2.15.
  const std::string dtype(c10::getDtypeNames(tensor.scalar_type()).first);
  Json::Object entry{{"dtype", dtype}, {"shape", shape}};
  if (with_elements && tensor.numel() == 1 && !tensor.is_complex()) {
    entry.emplace_back("value", storable(tensor.item<double>()));
  } else {
    for (auto& measured : measure(tensor, reductions)) entry.push_back(std::move(measured));
    if (with_elements) {
      const at::Tensor dense = tensor.layout() == at::kStrided ? tensor : tensor.to_dense();
      raw.emplace_back(name, dense.detach().to(at::kCPU, /*non_blocking=*/false, /*copy=*/true));
      entry.emplace_back("raw", true);
    }
  }
  line.emplace_back(name, std::move(entry));
}

void Hook::Impl::add_name(const std::string& collection, const std::string& name) {
  collections_changed |= names[collection].insert(name).second;
}

Json Hook::Impl::collections_json() const {
  std::map<std::string, Json::Object> all;
  const auto entry = [&](const std::string& name) -> Json::Object& {
    Json::Object& object = all[name];
    if (object.empty()) {
      object = Json::Object{{"include_regex", Json::Array{}}, {"tensor_names", Json::Array{}}};
    }
    return object;
  };
  for (const auto& [name, expression] : expressions()) {
    entry(name)[0].second = Json::Array{Json(expression)};
  }
  for (const auto& [name, tensors] : names) {
    Json::Array list;
    for (const std::string& tensor : tensors) list.emplace_back(tensor);
    entry(name)[1].second = list;
  }
  Json::Object json;
  for (auto& [name, object] : all) json.emplace_back(name, std::move(object));
  return json;
}

/// Files are begun by the first line.
RecordFile& Hook::Impl::file() {
  if (record_file) return *record_file;
  if (rank == 0) std::remove((options.folder + "/stop").c_str());  // of a training before
  return record_file.emplace(options.folder, "worker_" + std::to_string(rank), workers);
}

/// Lines in a file that could be begun: a disk that gets full ends what is saved, and not the
/// training.
void Hook::Impl::write(const std::function<void(RecordFile&)>& lines) {
  RecordFile& to = file();
  try {
    lines(to);
  } catch (const SystemError& error) {
    log(LogLevel::kError, std::string("the debugger saves nothing more: ") + error.what());
    writes = false;
    record_file.reset();
  }
}

/// Writes what was taken as one line.
void Hook::Impl::flush() {
  if (line.empty()) return;
  const auto step_of = [&](const std::string& of) {
    const auto found = steps.find(of);
    return found == steps.end() ? int64_t{0} : found->second;
  };
  Json::Object record{{"mode", mode},
                      {"step", step_of(mode)},
                      {"global", step_of(kGlobal)},
                      {"time", seconds_since_1970()}};
  write([&](RecordFile& to) {
    if (collections_changed) to.write(Json::Object{{"collections", collections_json()}});
    collections_changed = false;
    if (!raw.empty()) record.emplace_back("raw", to.write_raw(raw));
    record.emplace_back("tensors", std::move(line));
    to.write(record);
    incomplete = step_of(kGlobal);
  });
  line.clear();
  raw.clear();
}

Hook::Hook(HookOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

Hook::~Hook() {
  try {
    if (impl_->record_file) impl_->record_file->close();
  } catch (const std::exception& error) {
    log(LogLevel::kWarning, error.what());
  }
}

void Hook::register_module(const torch::nn::Module& module) {
  const std::string prefix = class_of(module) + "_";
  for (const auto& parameter : module.named_parameters()) {
    impl_->parameters.emplace_back(prefix + parameter.key(), parameter.value());
  }
}

void Hook::set_mode(const std::string& mode) {
  for (const char* const known : kModes) {
    if (mode != known) continue;
    impl_->mode = mode;
    return;
  }
  throw InvalidArgument("debugger-mode", "set_mode() got '" + mode + "'.",
                        "each step is one of training, evaluation, prediction, or of no mode.",
                        "pass \"TRAIN\", \"EVAL\", \"PREDICT\" or \"GLOBAL\".");
}

void Hook::begin_step() {
  Impl& own = *impl_;
  if (own.incomplete && own.writes) {
    own.write([&](RecordFile& to) { to.write(Json::Object{{"complete", *own.incomplete}}); });
  }
  own.incomplete.reset();
  for (const std::string& mode : std::set<std::string>{own.mode, kGlobal}) {
    const auto [entry, is_first] = own.steps.emplace(mode, 0);
    if (!is_first) ++entry->second;
  }
  if (!own.is_saved()) return;
  const auto saves = [&](const char* name) { return own.options.collections.count(name) != 0; };
  for (const auto& [name, tensor] : own.parameters) {
    const bool is_wanted = (saves("weights") && name.find("weight") != std::string::npos) ||
                           (saves("biases") && name.find("bias") != std::string::npos);
    if (is_wanted) own.save(name, tensor, own.options.reductions, own.options.save_raw_tensor);
  }
  own.flush();
}

bool Hook::is_saved() const { return impl_->is_saved(); }

int64_t Hook::step() const {
  const auto found = impl_->steps.find(kGlobal);
  return found == impl_->steps.end() ? -1 : found->second;
}

void Hook::after_backward() {
  Impl& own = *impl_;
  if (!own.is_saved() || own.options.collections.count("gradients") == 0) return;
  for (const auto& [name, tensor] : own.parameters) {
    if (!tensor.grad().defined()) continue;
    own.save("gradient/" + name, tensor.grad(), own.options.reductions,
             own.options.save_raw_tensor);
  }
  own.flush();
}

void Hook::save_loss(const std::string& name, const at::Tensor& loss) {
  if (!impl_->is_saved()) return;
  const std::string as = name + "_output_0";
  impl_->add_name("losses", as);
  impl_->save(as, loss, {}, /*with_elements=*/true);
  impl_->flush();
}

void Hook::save_scalar(const std::string& name, double value) {
  if (!impl_->writes) return;
  const at::Tensor tensor = at::scalar_tensor(value, at::kDouble);
  impl_->save("scalar/" + name, tensor, {}, /*with_elements=*/true);
  impl_->flush();
}

void Hook::save_tensor(const std::string& name, const at::Tensor& tensor,
                       const std::string& collection) {
  impl_->add_name(collection, name);
  if (!impl_->is_saved()) return;
  checkpoint::name_of_dtype(tensor.scalar_type(), name);  // throws if a file cannot have it
  impl_->save(name, tensor, {}, /*with_elements=*/true);
  impl_->flush();
}

}  // namespace farandole::debugger
