// SPDX-License-Identifier: Apache-2.0
#include "kernels/norm_kernels.h"

#include <cmath>

#include "kernels/sum_of_squares.h"

namespace farandole {
namespace {

FARANDOLE_CLONES double squares_float(const float* values, int64_t count) {
  return sum_of_squares(values, count);
}
FARANDOLE_CLONES double squares_double(const double* values, int64_t count) {
  return sum_of_squares(values, count);
}

template <class T>
double term(const T* values, int64_t count, double power) {
  double result = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double value = std::abs(static_cast<double>(values[i]));
    result = joined_terms(result, std::isinf(power) ? value : std::pow(value, power), power);
  }
  return result;
}

}  // namespace

double norm_term(const float* values, int64_t count, double power) {
  return power == 2 ? squares_float(values, count) : term(values, count, power);
}
double norm_term(const double* values, int64_t count, double power) {
  return power == 2 ? squares_double(values, count) : term(values, count, power);
}

double joined_terms(double a, double b, double power) {
  if (!std::isinf(power)) return a + b;
  return std::isnan(a) || a > b ? a : b;
}

}  // namespace farandole
