// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/torch/boxed_kernel.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <c10/util/Exception.h>

#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

#include "support/simulated_device/device.h"
#include "support/simulated_device/torch/device_guard.h"
#include "support/simulated_device/torch/generator.h"
#include "support/simulated_device/torch/host_views.h"

namespace farandole::sim {
namespace {

using at::IValue;
using at::Tensor;
using torch::jit::Stack;

std::mutex waiting_mutex;
std::vector<std::string> waiting_operators;  // guarded by waiting_mutex

std::string name_of(const c10::FunctionSchema& schema) {
  std::string name = schema.name();
  if (name.rfind("aten::", 0) == 0) name = name.substr(6);
  return schema.overload_name().empty() ? name : name + "." + schema.overload_name();
}

bool is_generator(const c10::Argument& argument) {
  static const c10::TypePtr generator = c10::getTypePtr<std::optional<at::Generator>>();
  return argument.type()->isSubtypeOf(*generator);
}

bool holds_tensors(const c10::Argument& result) {
  static const c10::TypePtr list = c10::getTypePtr<std::vector<Tensor>>();
  return result.type()->isSubtypeOf(*c10::TensorType::get()) || result.type()->isSubtypeOf(*list);
}

/// The kernel of the CPU, called with what its arguments hold. Some kernels that return several
/// references read them from the stack after it has dropped them, so a second copy lives as long.
Stack call(const c10::OperatorHandle& op, Stack arguments) {
  const Stack kept = arguments;
  op.callBoxed(&arguments);
  return arguments;
}

/// One call of an operator.
class Call {
 public:
  Call(const c10::OperatorHandle& op, Stack* stack)
      : op_(op),
        schema_(op.schema()),
        name_(name_of(schema_)),
        stack_(stack),
        arguments_(stack->end() - static_cast<std::ptrdiff_t>(schema_.arguments().size()),
                   stack->end()),
        device_(find_device()),
        guard_(device_) {}

  void run();

 private:
  c10::Device find_device() const;
  void check_supported() const;
  std::string reason_to_wait();
  bool predict(c10::DeviceType where);
  Tensor stand_in(const Tensor& tensor, c10::DeviceType where);

  void launch();
  void wait(const std::string& reason);

  void resize_outputs();
  Stack host_arguments(HostViews& views, bool copies_tensors_of_host);
  void return_values(std::vector<IValue> results);

  bool is_written(size_t argument) const;
  /// Which argument a result is, for results that are not new.
  std::optional<size_t> argument_of_result(size_t result) const;
  Tensor allocate_like(const Tensor& tensor) const {
    return at::empty_strided(tensor.sizes(), tensor.strides(),
                             at::TensorOptions(tensor.scalar_type()).device(device_));
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  const std::string name_;
  Stack* stack_;
  const std::vector<IValue> arguments_;
  const c10::Device device_;
  const c10::DeviceGuard guard_;
  std::unordered_map<c10::TensorImpl*, Tensor> stand_ins_;  ///< of simulated arguments
  Stack predicted_;                                         ///< results like those to come
  std::vector<Access> accesses_;
};

void Call::run() {
  check_supported();
  const std::string reason = reason_to_wait();
  reason.empty() ? launch() : wait(reason);
}

/// That of the first simulated tensor, else the one that the operator is told, else the current.
c10::Device Call::find_device() const {
  c10::Device device(kSim, static_cast<c10::DeviceIndex>(current_device()));
  for (const IValue& each : arguments_) {
    if (each.isDevice() && each.toDevice().has_index()) device = each.toDevice();
  }
  bool has_tensor = false;
  for (const IValue& each : arguments_) {
    for_each_tensor(each, [&](const Tensor& tensor) {
      if (!has_tensor && is_simulated(tensor)) device = tensor.device();
      has_tensor |= is_simulated(tensor);
    });
  }
  return device;
}

void Call::check_supported() const {
  TORCH_CHECK_NOT_IMPLEMENTED(op_.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU), name_,
                              " has no kernel on the CPU, whose kernels simulated devices run");
  for (const c10::Argument& each : schema_.returns()) {
    TORCH_CHECK_NOT_IMPLEMENTED(each.alias_info() == nullptr || each.alias_info()->isWrite(), name_,
                                " returns a view and needs a kernel for simulated devices");
  }
}

/// Empty if outputs were predicted.
std::string Call::reason_to_wait() {
  if (op_.hasTag(at::Tag::dynamic_output_shape) || op_.hasTag(at::Tag::data_dependent_output)) {
    return "its outputs depend on data";
  }
  for (const c10::Argument& each : schema_.returns()) {
    if (!holds_tensors(each)) return "it returns a value to the host";
  }
  bool writes_to_host = false;
  int64_t elements = 0;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    for_each_tensor(arguments_[i], [&](const Tensor& tensor) {
      writes_to_host |= is_written(i) && !is_simulated(tensor);
      elements += tensor.numel();
    });
  }
  if (writes_to_host) return "it writes to memory of the host";
  // Once torch._dynamo is imported, most meta kernels are Python functions, which take a
  // millisecond.
  constexpr int64_t kSmall = 1 << 14;
  const bool is_random = op_.hasTag(at::Tag::nondeterministic_seeded);
  if (elements <= kSmall && !is_random && predict(c10::kCPU)) return "";
  // Many meta kernels exist in Python only.
  if (predict(c10::kMeta) || predict(c10::kCPU)) return "";
  return "it has no meta kernel and does not take zeros";
}

/// Runs the operator on tensors like its arguments, without their data.
bool Call::predict(c10::DeviceType where) {
  stand_ins_.clear();
  Stack arguments;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (arguments_[i].isDevice()) {
      arguments.emplace_back(c10::Device(where));
    } else if (is_generator(schema_.arguments()[i])) {
      arguments.emplace_back();
    } else {
      arguments.push_back(map_tensors(
          arguments_[i], [&](const Tensor& tensor) { return stand_in(tensor, where); }));
    }
  }
  try {
    predicted_ = call(op_, std::move(arguments));
  } catch (const std::exception&) {
    return false;
  }
  return true;
}

Tensor Call::stand_in(const Tensor& tensor, c10::DeviceType where) {
  if (!is_simulated(tensor)) return tensor;
  Tensor& found = stand_ins_[tensor.unsafeGetTensorImpl()];
  if (!found.defined()) {
    found = at::empty_strided(tensor.sizes(), tensor.strides(),
                              at::TensorOptions(tensor.scalar_type()).device(where));
    if (where == c10::kCPU) found.zero_();
  }
  return found;
}

void Call::launch() {
  resize_outputs();
  HostViews views;
  Stack arguments = host_arguments(views, /*copies_tensors_of_host=*/true);
  std::vector<std::pair<size_t, Tensor>> outputs;  // by result, where they go
  std::vector<IValue> results;
  for (size_t i = 0; i < predicted_.size(); ++i) {
    if (const auto argument = argument_of_result(i)) {
      results.push_back(arguments_[*argument]);
      continue;
    }
    results.push_back(map_tensors(predicted_[i], [&](const Tensor& tensor) {
      Tensor output = allocate_like(tensor);
      accesses_.push_back(access_to(output, true));
      outputs.emplace_back(i, views.of(output));
      return output;
    }));
  }
  const auto kernel = [op = op_, arguments, outputs] {
    const BelowAutograd below;
    const Stack computed = call(op, arguments);
    auto output = outputs.begin();
    for (size_t i = 0; i < computed.size(); ++i) {
      for_each_tensor(computed[i], [&](const Tensor& tensor) {
        if (output == outputs.end() || output->first != i) return;
        TORCH_CHECK(output->second.sizes() == tensor.sizes(), "the meta kernel says ",
                    output->second.sizes(), ", that of the CPU gives ", tensor.sizes());
        output->second.copy_(tensor);
        ++output;
      });
    }
  };
  current_stream(device_.index()).launch(name_, accesses_, kernel);
  return_values(std::move(results));
}

void Call::wait(const std::string& reason) {
  {
    const std::lock_guard<std::mutex> lock(waiting_mutex);
    waiting_operators.push_back(name_ + ": " + reason);
  }
  HostViews views;
  Stack arguments = host_arguments(views, /*copies_tensors_of_host=*/false);
  Stream& stream = current_stream(device_.index());
  stream.launch(name_, accesses_, nullptr);
  stream.synchronize();
  const Stack computed = call(op_, std::move(arguments));
  std::vector<IValue> results;
  for (size_t i = 0; i < computed.size(); ++i) {
    if (const auto argument = argument_of_result(i)) {
      results.push_back(arguments_[*argument]);
      continue;
    }
    results.push_back(map_tensors(computed[i], [&](const Tensor& tensor) {
      Tensor output = allocate_like(tensor);
      output.copy_(tensor);
      return output;
    }));
  }
  return_values(std::move(results));
}

/// Outputs that the caller gives are resized as the operator would.
void Call::resize_outputs() {
  for (size_t i = 0; i < arguments_.size(); ++i) {
    if (!is_written(i)) continue;
    for_each_tensor(arguments_[i], [&](const Tensor& tensor) {
      const Tensor& resized = stand_ins_[tensor.unsafeGetTensorImpl()];
      if (resized.sizes() == tensor.sizes()) return;
      tensor.resize_(resized.sizes());
      tensor.unsafeGetTensorImpl()->set_sizes_and_strides(resized.sizes(), resized.strides());
    });
  }
}

/// Also notes what the kernel accesses. Tensors of the host are copied where the host may change
/// them before the kernel runs.
Stack Call::host_arguments(HostViews& views, bool copies_tensors_of_host) {
  Stack arguments;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const IValue& given = arguments_[i];
    if (given.isDevice()) {
      arguments.emplace_back(c10::Device(c10::kCPU));
    } else if (is_generator(schema_.arguments()[i])) {
      arguments.emplace_back(generator_for_kernel(
          given.isGenerator() ? given.toGenerator() : default_generator(device_.index())));
    } else {
      arguments.push_back(map_tensors(given, [&](const Tensor& tensor) {
        if (!is_simulated(tensor)) return copies_tensors_of_host ? tensor.clone() : tensor;
        accesses_.push_back(access_to(tensor, is_written(i)));
        return views.of(tensor);
      }));
    }
  }
  return arguments;
}

void Call::return_values(std::vector<IValue> results) {
  torch::jit::drop(*stack_, arguments_.size());
  for (IValue& each : results) stack_->push_back(std::move(each));
}

bool Call::is_written(size_t argument) const {
  // The schema does not say that this one updates its statistics, the fourth and fifth argument.
  if (name_ == "native_batch_norm" && (argument == 3 || argument == 4)) return true;
  const c10::AliasInfo* alias = schema_.arguments()[argument].alias_info();
  return alias != nullptr && alias->isWrite();
}

std::optional<size_t> Call::argument_of_result(size_t result) const {
  const c10::AliasInfo* alias = schema_.returns()[result].alias_info();
  if (alias == nullptr) return std::nullopt;
  for (size_t i = 0; i < arguments_.size(); ++i) {
    const c10::AliasInfo* argument = schema_.arguments()[i].alias_info();
    if (argument != nullptr && argument->beforeSets() == alias->beforeSets()) return i;
  }
  return std::nullopt;
}

}  // namespace

void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, Stack* stack) {
  const BelowAutograd below;
  Call(op, stack).run();
}

std::vector<std::string> take_waiting_operators() {
  const std::lock_guard<std::mutex> lock(waiting_mutex);
  return std::exchange(waiting_operators, {});
}

}  // namespace farandole::sim
