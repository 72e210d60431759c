// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "process_group/argument_checks.h"
#include "process_group/flat_tensor.h"

namespace farandole {

/// How the tensors of the ranks are combined: comm's operation, and what each rank does before.
struct Reduction {
  comm::ReduceOp op;
  at::Tensor factor;  ///< PREMUL_SUM: one number, this rank's tensor is multiplied by it; undefined
                      ///< otherwise

  /// What `communicator` is given for `flat`: itself, or where it has no factors of its own a
  /// multiplied copy of the same dtype.
  at::Tensor prepared(const at::Tensor& flat, const comm::Communicator& communicator) const;
  /// `options` with the factor, if `communicator` has them.
  comm::CollectiveOptions with_factor(comm::CollectiveOptions options,
                                      const comm::Communicator& communicator) const;
};

/// The reduction `op` on elements of `tensor`. Throws before anything is sent: InvalidArgument
/// where the result would have no meaning, NotSupported where comm cannot.
Reduction reduction_of(const Caller& caller, const c10d::ReduceOp& op, const at::Tensor& tensor);

/// What comm reduces for a flat tensor: its elements, a complex one as two real ones.
Wire reduced_wire_of(const at::Tensor& flat);

}  // namespace farandole
