// SPDX-License-Identifier: Apache-2.0
#include "process_group/reduce_op.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include "farandole/error.h"
#include "process_group/data_type.h"

namespace farandole {
namespace {

const char* name_of(c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
      return "SUM";
    case c10d::ReduceOp::AVG:
      return "AVG";
    case c10d::ReduceOp::PRODUCT:
      return "PRODUCT";
    case c10d::ReduceOp::MIN:
      return "MIN";
    case c10d::ReduceOp::MAX:
      return "MAX";
    case c10d::ReduceOp::BAND:
      return "BAND";
    case c10d::ReduceOp::BOR:
      return "BOR";
    case c10d::ReduceOp::BXOR:
      return "BXOR";
    case c10d::ReduceOp::PREMUL_SUM:
      return "PREMUL_SUM";
    default:
      return "a reduction that it does not know";
  }
}

comm::ReduceOp comm_op_of(const Caller& caller, c10d::ReduceOp::RedOpType op) {
  switch (op) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return comm::ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return comm::ReduceOp::kAvg;
    case c10d::ReduceOp::PRODUCT:
      return comm::ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return comm::ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return comm::ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return comm::ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return comm::ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return comm::ReduceOp::kBitXor;
    default:
      throw NotSupported(
          "unknown-reduction",
          caller.describe() + " got the unknown reduction " + name_of(op) + ".",
          "supported are SUM, AVG, PRODUCT, MIN, MAX, BAND, BOR, BXOR and PREMUL_SUM.",
          "pass one of them.");
  }
}

void check_type(const Caller& caller, at::ScalarType type) {
  if (data_type_of(type) || type == at::kComplexFloat || type == at::kComplexDouble) return;
  throw NotSupported(
      "element-type-reduction",
      caller.describe() + " cannot reduce elements of type " + c10::toString(type) + ".",
      "float64/32/16, bfloat16, complex128/64, int64/32/16/8, uint8 and bool can be reduced; other "
      "types can only be moved.",
      "cast the tensor to a wider type first.");
}

void check_meaning(const Caller& caller, c10d::ReduceOp::RedOpType op, at::ScalarType type) {
  const bool is_sum = op == c10d::ReduceOp::SUM || op == c10d::ReduceOp::AVG;
  if (at::isComplexType(type) && !is_sum) {
    throw NotSupported(
        "complex-reduction",
        caller.describe() + " cannot reduce complex numbers with " + name_of(op) + ".",
        "they are sent as pairs of real numbers, which only SUM and AVG can reduce one by one.",
        "gather them with all_gather() and reduce them on each rank.");
  }
  if (type == at::kBool && op == c10d::ReduceOp::AVG) {
    throw InvalidArgument("avg-of-bool", caller.describe() + " got AVG on a bool tensor.",
                          "bool values have no mean.",
                          "use SUM (or), PRODUCT (and), or cast first.");
  }
  const bool is_of_bits =
      op == c10d::ReduceOp::BAND || op == c10d::ReduceOp::BOR || op == c10d::ReduceOp::BXOR;
  if (is_of_bits && !at::isIntegralType(type, /*includeBool=*/true)) {
    throw InvalidArgument(
        "bitwise-on-floats",
        caller.describe() + " got " + name_of(op) + " on elements of type " + c10::toString(type) +
            ".",
        "bitwise operations take integers and bool.",
        "pass tensor.view(torch.int32), or another integer type of the same width.");
  }
  if (op == c10d::ReduceOp::PREMUL_SUM && !at::isFloatingType(type)) {
    throw InvalidArgument(
        "premul-dtype",
        caller.describe() + " got PREMUL_SUM on elements of type " + c10::toString(type) + ".",
        "the factor is a real number, and the product would not be a value of that type.",
        "pass a floating-point tensor.");
  }
}

at::Tensor factor_of(const Caller& caller, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const auto* supplement = dynamic_cast<c10d::NCCLPreMulSumSupplement*>(op.supplement_.get());
  if (supplement == nullptr) {
    throw InvalidArgument("premul-without-factor",
                          caller.describe() + " got PREMUL_SUM without a factor.",
                          "it multiplies each rank's tensor by a number before the sum.",
                          "make the operation with c10d::makeNCCLPreMulSum(factor), in Python with "
                          "torch.distributed._make_nccl_premul_sum(factor).");
  }
  if (!supplement->tensor_factor.defined()) {
    return at::scalar_tensor(supplement->double_factor, at::kDouble);
  }
  const at::Tensor& factor = supplement->tensor_factor;
  if (factor.is_cpu() && factor.scalar_type() == tensor.scalar_type()) return factor.reshape({});
  throw InvalidArgument(
      "premul-factor-tensor",
      caller.describe() + " got a PREMUL_SUM factor that does not fit its tensor.",
      "a factor that is a tensor must be on the CPU and have the dtype of the tensor that it "
      "multiplies.",
      "pass factor.to(tensor), or a plain number.");
}

/// Whether `communicator` multiplies itself.
bool has_factors(const comm::Communicator& communicator) {
  return communicator.memory_kind() == comm::MemoryKind::kDevice;
}

}  // namespace

at::Tensor Reduction::prepared(const at::Tensor& flat,
                               const comm::Communicator& communicator) const {
  return factor.defined() && !has_factors(communicator) ? at::mul(flat, factor) : flat;
}

comm::CollectiveOptions Reduction::with_factor(comm::CollectiveOptions options,
                                               const comm::Communicator& communicator) const {
  if (factor.defined() && has_factors(communicator)) options.factor = factor.item<double>();
  return options;
}

Reduction reduction_of(const Caller& caller, const c10d::ReduceOp& op, const at::Tensor& tensor) {
  const at::ScalarType type = tensor.scalar_type();
  check_type(caller, type);
  Reduction reduction{comm_op_of(caller, op.op_), {}};
  check_meaning(caller, op.op_, type);
  if (op.op_ == c10d::ReduceOp::PREMUL_SUM) {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    reduction.factor = factor_of(caller, op, tensor);
  }
  return reduction;
}

Wire reduced_wire_of(const at::Tensor& flat) {
  const auto count = static_cast<size_t>(flat.numel());
  if (flat.scalar_type() == at::kComplexFloat) return {comm::DataType::kFloat32, 2 * count};
  if (flat.scalar_type() == at::kComplexDouble) return {comm::DataType::kFloat64, 2 * count};
  return wire_of(flat);
}

}  // namespace farandole
