// SPDX-License-Identifier: Apache-2.0
#include "ddp/sole_holder.h"

namespace farandole {

bool has_sole_holder(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.storage().use_count() != 1) return false;
  if (tensor.use_count() == 1) return true;
  // A tensor that has been in Python: its object counts as a holder, and nobody holds the object
  // but the tensor. (Note [PyObject preservation for Tensor and Storages] in c10.)
  const auto& object = *tensor.unsafeGetTensorImpl()->pyobj_slot();
  return tensor.use_count() == 2 && object.has_unique_reference();
}

}  // namespace farandole
