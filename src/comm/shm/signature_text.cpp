// SPDX-License-Identifier: Apache-2.0
#include "comm/shm/signature_text.h"

namespace farandole::comm::shm {

std::string text_of(const Signature& signature) {
  const std::string count = std::to_string(signature.count);
  if (signature.operation == OpKind::kBarrier) return "barrier()";
  if (signature.operation == OpKind::kAllocate) return "allocate_symmetric(" + count + " bytes)";
  if (signature.operation == OpKind::kBucketReduction) {
    return "bucket_reduction(" + count + " buckets, allocation " + std::to_string(signature.root) +
           ")";
  }
  std::string text = std::string(name_of(signature.operation)) + "(" + name_of(signature.dtype) +
                     "[" + count + "]";
  switch (signature.operation) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
    case OpKind::kReduce:
      text += std::string(", ") + name_of(signature.reduce_op);
      break;
    default:
      break;
  }
  if (signature.root >= 0) text += ", root=" + std::to_string(signature.root);
  return text + ")";
}

}  // namespace farandole::comm::shm
