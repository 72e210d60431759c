// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <unordered_map>

#include "support/simulated_device/race_detector.h"

namespace farandole::sim {

bool is_simulated(const at::Tensor& tensor);

/// From the first byte of a tensor to its last.
Access access_to(const at::Tensor& tensor, bool writes);

/// Tensors of the CPU over the bytes of simulated tensors, for one kernel. Views of one storage
/// share one here too, as checks for overlap expect. They do not keep the memory.
///
/// Threads: one at a time. Tensors given out may be used by the kernel only.
class HostViews {
 public:
  /// Tensors that are not simulated are returned as they are.
  at::Tensor of(const at::Tensor& tensor);

 private:
  c10::Storage storage_of(const at::Tensor& tensor);

  std::unordered_map<c10::StorageImpl*, c10::Storage> storages_;
  std::unordered_map<c10::TensorImpl*, at::Tensor> tensors_;
};

/// While it lives, the thread calls kernels of the CPU, without autograd and autocast.
struct BelowAutograd {
  c10::impl::ExcludeDispatchKeyGuard autograd{c10::autograd_dispatch_keyset_with_ADInplaceOrView};
  c10::impl::ExcludeDispatchKeyGuard autocast{c10::autocast_dispatch_keyset};
  c10::impl::ExcludeDispatchKeyGuard python{
      c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot)};
};

/// `value` with f(tensor) in place of each defined tensor in it.
template <class F>
at::IValue map_tensors(const at::IValue& value, const F& f) {
  if (value.isTensor()) return value.toTensor().defined() ? at::IValue(f(value.toTensor())) : value;
  if (value.isTensorList()) {
    c10::List<at::Tensor> mapped;
    for (const at::Tensor& each : value.toTensorVector()) {
      mapped.push_back(each.defined() ? f(each) : each);
    }
    return mapped;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> mapped;
    for (const auto& each : value.toOptionalTensorVector()) {
      const bool is_defined = each && each->defined();
      mapped.push_back(is_defined ? std::optional<at::Tensor>(f(*each)) : each);
    }
    return mapped;
  }
  return value;
}

template <class F>
void for_each_tensor(const at::IValue& value, const F& f) {
  map_tensors(value, [&](const at::Tensor& each) {
    f(each);
    return each;
  });
}

}  // namespace farandole::sim
