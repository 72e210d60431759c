// SPDX-License-Identifier: Apache-2.0
#include "optim/device/kernel_launches.h"

#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>

#include <cstdint>
#include <string>
#include <type_traits>
#include <variant>

#include "farandole/comm/types.h"
#include "optim/device/kernel_launch.h"

namespace farandole {
namespace {

template <class T>
const char* name_of(const AdamFormula<T>& /*formula*/) {
  return "Adam";
}
template <class T>
const char* name_of(const SgdFormula<T>& /*formula*/) {
  return "Sgd";
}
template <class T>
const char* name_of(const LarsFormula<T>& /*formula*/) {
  return "Lars";
}
template <class T>
const char* name_of(const LambFormula<T>& /*formula*/) {
  return "Lamb";
}

}  // namespace

KernelLaunches::KernelLaunches(c10::Device device, Kind kind, const RuleFormulas& formulas,
                               const KernelTable& alike)
    : device_(device), kind_(kind), formulas_(formulas), table_(alike) {
  table_.pieces = 0;
  table_.first_block[0] = 0;
  table_.partial_sums = nullptr;
}

void KernelLaunches::add(const KernelPiece& piece) {
  if (piece.elements == 0) return;
  // Blocks are counted in 32 bits; a piece of 2^43 elements does not exist.
  const int64_t blocks = (piece.elements + kKernelElements - 1) / kKernelElements;
  table_.piece[table_.pieces] = piece;
  table_.first_block[table_.pieces + 1] =
      table_.first_block[table_.pieces] + static_cast<int32_t>(blocks);
  if (++table_.pieces == static_cast<int32_t>(kKernelPieces)) end();
}

void KernelLaunches::end() {
  if (table_.pieces == 0) return;
  if (table_.parameter_dtype == comm::DataType::kFloat64) {
    launch_formula(formulas_.in_double);
  } else {
    launch_formula(formulas_.in_float);
  }
  table_.pieces = 0;
}

template <class T>
void KernelLaunches::launch_formula(const AnyFormula<T>& any) {
  const c10::DeviceGuard guard(device_);
  const int blocks = table_.first_block[table_.pieces];
  const char* const type = std::is_same_v<T, double> ? "_double" : "_float";
  at::Tensor sums;
  if (kind_ == Kind::kMeasure) {
    sums = at::empty({blocks * static_cast<int64_t>(kKernelSums)},
                     at::TensorOptions(device_).dtype(at::kDouble));
    table_.partial_sums = sums.mutable_data_ptr<double>();
  }
  std::visit(
      [&](const auto& formula) {
        using Formula = std::decay_t<decltype(formula)>;
        static_assert(sizeof(KernelArguments<Formula>) <= kKernelBytes);
        const KernelArguments<Formula> arguments{formula, table_};
        const std::string kind = kind_ == Kind::kMeasure ? "measure_" : "update_";
        launch_kernel(device_, "farandole_" + kind + name_of(formula) + type, &arguments,
                      sizeof(arguments), blocks);
      },
      any);
  if (kind_ == Kind::kMeasure) {
    launch_kernel(device_, "farandole_add_sums", &table_, sizeof(table_), table_.pieces);
  }
}

}  // namespace farandole
