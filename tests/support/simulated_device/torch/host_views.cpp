// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/torch/host_views.h"

#include <c10/util/Exception.h>

#include <utility>

#include "support/simulated_device/memory.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::sim {

bool is_simulated(const at::Tensor& tensor) {
  return tensor.defined() && tensor.device().type() == kSim;
}

Access access_to(const at::Tensor& tensor, bool writes) {
  if (tensor.numel() == 0) return {nullptr, 0, writes};
  int64_t last = 0;
  for (int64_t i = 0; i < tensor.dim(); ++i) last += (tensor.size(i) - 1) * tensor.stride(i);
  return {tensor.const_data_ptr(), static_cast<size_t>(last + 1) * tensor.element_size(), writes};
}

at::Tensor HostViews::of(const at::Tensor& tensor) {
  if (!is_simulated(tensor)) return tensor;
  TORCH_CHECK_NOT_IMPLEMENTED(tensor.layout() == c10::kStrided,
                              "simulated devices have dense tensors only");
  at::Tensor& view = tensors_[tensor.unsafeGetTensorImpl()];
  if (view.defined()) return view;
  view = at::detail::make_tensor<c10::TensorImpl>(
      storage_of(tensor), c10::DispatchKeySet(c10::DispatchKey::CPU), tensor.dtype());
  c10::TensorImpl* impl = view.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides());
  impl->set_storage_offset(tensor.storage_offset());
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) impl->set_wrapped_number(true);
  return view;
}

c10::Storage HostViews::storage_of(const at::Tensor& tensor) {
  c10::StorageImpl* simulated = tensor.storage().unsafeGetStorageImpl();
  c10::Storage& storage = storages_[simulated];
  if (!storage) {
    void* bytes = bytes_of(simulated->mutable_data());
    storage = c10::Storage(c10::Storage::use_byte_size_t(), simulated->nbytes(),
                           c10::DataPtr(bytes, c10::DeviceType::CPU));
  }
  return storage;
}

}  // namespace farandole::sim
