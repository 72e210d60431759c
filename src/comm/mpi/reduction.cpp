// SPDX-License-Identifier: Apache-2.0
#include "comm/mpi/reduction.h"

#include "comm/mpi/check.h"
#include "kernels/divide_kernels.h"
#include "kernels/reduce_kernels.h"

namespace farandole::comm::mpi {
namespace {

/// A function for MPI_Op_create(): `later` is combined with what precedes it in `earlier`.
template <DataType dtype, ReduceOp op>
void combine(void* earlier, void* later, int* count, MPI_Datatype*) {
  const void* const sources[] = {earlier, later};
  void* const destinations[] = {later};
  reduce({sources, 2}, {destinations, 1}, static_cast<size_t>(*count), dtype, op);
}

template <DataType dtype, ReduceOp op>
MPI_Op own_operation() {
  static const MPI_Op operation = [] {
    MPI_Op made = MPI_OP_NULL;
    check(MPI_Op_create(combine<dtype, op>, /*commute=*/1, &made), "MPI_Op_create");
    return made;
  }();
  return operation;
}

/// Operations of ours on a floating-point dtype.
template <DataType dtype>
MPI_Op own_operation_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return own_operation<dtype, ReduceOp::kMin>();
    case ReduceOp::kMax:
      return own_operation<dtype, ReduceOp::kMax>();
    case ReduceOp::kProduct:
      return own_operation<dtype, ReduceOp::kProduct>();
    default:
      return own_operation<dtype, ReduceOp::kSum>();
  }
}

MPI_Datatype type_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat64:
      return MPI_DOUBLE;
    case DataType::kFloat32:
      return MPI_FLOAT;
    case DataType::kFloat16:
    case DataType::kBFloat16:
      return MPI_UINT16_T;
    case DataType::kInt64:
      return MPI_INT64_T;
    case DataType::kInt32:
      return MPI_INT32_T;
    case DataType::kInt16:
      return MPI_INT16_T;
    case DataType::kInt8:
      return MPI_INT8_T;
    default:
      return MPI_UINT8_T;
  }
}

MPI_Op mpi_operation(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
    case ReduceOp::kProduct:
      return MPI_PROD;
    case ReduceOp::kBitAnd:
      return MPI_BAND;
    case ReduceOp::kBitOr:
      return MPI_BOR;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
    default:
      return MPI_SUM;
  }
}

/// Bools are bytes of 0 or 1.
MPI_Op operation_of_bool(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kMax:
    case ReduceOp::kBitOr:
      return MPI_MAX;
    case ReduceOp::kBitXor:
      return MPI_BXOR;
    default:
      return MPI_MIN;
  }
}

MPI_Op operation_of(DataType dtype, ReduceOp op) {
  const bool selects = op == ReduceOp::kMin || op == ReduceOp::kMax;
  switch (dtype) {
    case DataType::kFloat16:
      return own_operation_of<DataType::kFloat16>(op);
    case DataType::kBFloat16:
      return own_operation_of<DataType::kBFloat16>(op);
    case DataType::kFloat32:
      return selects ? own_operation_of<DataType::kFloat32>(op) : mpi_operation(op);
    case DataType::kFloat64:
      return selects ? own_operation_of<DataType::kFloat64>(op) : mpi_operation(op);
    case DataType::kBool:
      return operation_of_bool(op);
    default:
      return mpi_operation(op);
  }
}

int power_of_two_from(int number) {
  int power = 1;
  while (power < number) power *= 2;
  return power;
}

}  // namespace

Reduction::Reduction(DataType dtype, ReduceOp op, int world_size)
    : dtype_(dtype),
      averages_(op == ReduceOp::kAvg),
      world_size_(world_size),
      scale_(averages_ && dtype == DataType::kFloat16 ? power_of_two_from(world_size) : 1),
      type_(type_of(dtype)),
      operation_(operation_of(dtype, averages_ ? ReduceOp::kSum : op)) {}

void Reduction::prepare(const void* input, void* prepared, size_t count) const {
  average({&input, 1}, {&prepared, 1}, count, dtype_, scale_);
}

void Reduction::finish(void* result, size_t count) const {
  if (!averages_) return;
  if (is_floating(dtype_)) {
    const void* const sum = result;
    average({&sum, 1}, {&result, 1}, count, dtype_, static_cast<double>(world_size_) / scale_);
  } else {
    divide(result, count, dtype_, world_size_);
  }
}

}  // namespace farandole::comm::mpi
