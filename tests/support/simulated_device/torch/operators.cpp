// SPDX-License-Identifier: Apache-2.0
// Operators that make tensors, change what they look at, or copy between devices. All others are
// kernels of the CPU (boxed_kernel.h).
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_local_scalar_dense.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/TensorOptions.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include "support/simulated_device/memory.h"
#include "support/simulated_device/torch/allocators.h"
#include "support/simulated_device/torch/boxed_kernel.h"
#include "support/simulated_device/torch/device_guard.h"
#include "support/simulated_device/torch/host_views.h"

namespace farandole::sim {
namespace {

using at::Tensor;
using torch::jit::Stack;

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

// Tensors and their memory.

Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
             std::optional<at::Layout> /*layout*/, std::optional<at::Device> device,
             std::optional<bool> /*pin_memory*/, std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kSim)));
  return at::detail::empty_generic(size, device_allocator(), kKeys, c10::dtype_or_default(dtype),
                                   format);
}

Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                     std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                     std::optional<at::Device> device, std::optional<bool> /*pin_memory*/) {
  const c10::DeviceGuard guard(device.value_or(c10::Device(kSim)));
  return at::detail::empty_strided_generic(size, stride, device_allocator(), kKeys,
                                           c10::dtype_or_default(dtype));
}

const Tensor& resize(const Tensor& self, at::IntArrayRef size,
                     std::optional<at::MemoryFormat> format) {
  const size_t bytes = at::detail::computeStorageNbytesContiguous(
      size, self.element_size(), static_cast<size_t>(self.storage_offset()));
  c10::StorageImpl* storage = self.storage().unsafeGetStorageImpl();
  if (bytes > storage->nbytes()) resize_storage(*storage, bytes);
  self.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  if (format) self.unsafeGetTensorImpl()->empty_tensor_restride(*format);
  return self;
}

Tensor& set_to_storage(Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                       at::IntArrayRef stride) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.size() == size.size() && stride.data() != nullptr) {
    impl->set_sizes_and_strides(size, stride);
  } else {
    impl->set_sizes_contiguous(size);
  }
  return self;
}

void record_stream_of(Tensor& self, at::Stream stream) {
  record_stream(self.storage().mutable_data(), stream_of(stream));
}

// Copies. As CUDA's, they run on the current stream, and the host waits unless it has asked not to
// and the memory of the host is pinned.

void copy_on(Stream& stream, const Tensor& to, const Tensor& from) {
  HostViews views;
  std::vector<Access> accesses;
  if (is_simulated(from)) accesses.push_back(access_to(from, false));
  if (is_simulated(to)) accesses.push_back(access_to(to, true));
  stream.launch("copy_", accesses, [to = views.of(to), from = views.of(from)] {
    const BelowAutograd below;
    to.copy_(from);
  });
}

void order(Stream& earlier, Stream& later) {
  Event event;
  event.record(earlier);
  later.wait(event);
}

/// On the current stream of the source, between what that of the destination has and will have.
void copy_between_devices(const Tensor& to, const Tensor& from) {
  Stream& source = current_stream(from.device().index());
  Stream& destination = current_stream(to.device().index());
  order(destination, source);
  copy_on(source, to, from);
  order(source, destination);
}

void copy_to_device(const Tensor& to, const Tensor& from, bool non_blocking) {
  Stream& stream = current_stream(to.device().index());
  // Memory that is not pinned is staged before the call returns.
  copy_on(stream, to, from.is_pinned() ? from : from.clone());
  if (!non_blocking) stream.synchronize();
}

void copy_to_host(const Tensor& to, const Tensor& from, bool non_blocking) {
  Stream& stream = current_stream(from.device().index());
  copy_on(stream, to, from);
  if (!non_blocking || !to.is_pinned()) stream.synchronize();
}

Tensor& copy(Tensor& self, const Tensor& source, bool non_blocking) {
  if (self.is_same(source) || self.numel() == 0) return self;
  const Tensor from = source.expand_as(self);
  if (!is_simulated(source)) {
    copy_to_device(self, from, non_blocking);
  } else if (!is_simulated(self)) {
    copy_to_host(self, from, non_blocking);
  } else if (self.device() == source.device()) {
    copy_on(current_stream(self.device().index()), self, from);
  } else {
    copy_between_devices(self, from);
  }
  return self;
}

Tensor copy_from(const Tensor& self, const Tensor& to, bool non_blocking) {
  Tensor copied = to;
  copy(copied, self, non_blocking);
  return to;
}

at::Scalar read_scalar(const Tensor& self) {
  const Tensor on_host = at::detail::empty_cpu({}, self.scalar_type());
  copy_to_host(on_host, self.reshape({}), /*non_blocking=*/false);
  return at::_local_scalar_dense(on_host);
}

// What torch would otherwise not bring to the CPU's kernel.

/// The CPU's draws from the generator of the process when it runs.
std::tuple<Tensor, Tensor> dropout(const Tensor& input, double p, std::optional<bool> train) {
  const auto options = at::TensorOptions(at::kBool);
  if (!train.value_or(true)) return {input.clone(), at::ones_like(input, options)};
  const double kept = 1 - p;
  Tensor mask = at::empty_like(input, options).bernoulli_(kept);
  return {input.mul(mask).mul_(kept == 0 ? 0.0 : 1 / kept), mask};
}

c10::OperatorHandle operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "");
}

/// Convolutions on a device that torch does not know have names and schemas of their own.
void convolution(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet keys, Stack* stack) {
  static const c10::OperatorHandle op = operator_named("aten::convolution");
  run_boxed(op, keys, stack);
}

void convolution_backward(const c10::OperatorHandle& /*op*/, c10::DispatchKeySet keys,
                          Stack* stack) {
  static const c10::OperatorHandle op = operator_named("aten::convolution_backward");
  // The CPU's takes the sizes of the bias too, after the gradient, the input and the weight.
  const Tensor weight = (stack->end() - 8)->toTensor();
  const bool is_transposed = (stack->end() - 4)->toBool();
  const int64_t groups = (stack->end() - 2)->toInt();
  const int64_t channels = is_transposed ? weight.size(1) * groups : weight.size(0);
  stack->insert(stack->end() - 7, at::IValue(std::vector<int64_t>{channels}));
  run_boxed(op, keys, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("resize_", resize);
  m.impl("set_.source_Storage_storage_offset", set_to_storage);
  m.impl("set_.source_Storage", static_cast<Tensor& (*)(Tensor&, at::Storage)>(at::native::set_));
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("record_stream", record_stream_of);

  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);

  m.impl("copy_", copy);
  m.impl("_copy_from", copy_from);
  m.impl("_local_scalar_dense", read_scalar);

  m.impl("native_dropout", dropout);
  m.impl("convolution_overrideable", torch::CppFunction::makeFromBoxedFunction<&convolution>());
  m.impl("convolution_backward_overrideable",
         torch::CppFunction::makeFromBoxedFunction<&convolution_backward>());
  // torch would compose these of other operators, which round differently from the CPU's kernels.
  for (const char* name : {"native_layer_norm", "native_layer_norm_backward"}) {
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_boxed>());
  }
}

}  // namespace
}  // namespace farandole::sim
