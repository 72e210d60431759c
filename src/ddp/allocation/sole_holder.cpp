// SPDX-License-Identifier: Apache-2.0
#include "ddp/allocation/sole_holder.h"

namespace farandole {

namespace {

bool has_one_reference(const at::TensorBase& tensor) {
  if (tensor.use_count() == 1) return true;
  // A tensor that has been in Python: its object counts as a holder, and nobody holds the object
  // but the tensor. (Note [PyObject preservation for Tensor and Storages] in c10.)
  const auto& object = *tensor.unsafeGetTensorImpl()->pyobj_slot();
  return tensor.use_count() == 2 && object.has_unique_reference();
}

}  // namespace

bool has_sole_holder(const at::Tensor& tensor) {
  if (!tensor.has_storage() || !has_one_reference(tensor)) return false;
  if (!tensor.is_view()) return tensor.storage().use_count() == 1;
  // The gradient of a transposed weight is a view: autograd keeps its base in it.
  return has_one_reference(tensor._base()) && tensor.storage().use_count() == 2;
}

}  // namespace farandole
