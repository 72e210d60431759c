// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace farandole {

/// What one parameter's update reads and writes, as runs of memory in the same order.
struct ParameterArrays {
  at::ScalarType type;  ///< of the parameter: kFloat, kDouble, kHalf or kBFloat16
  int64_t elements;
  void* parameter;
  const void* gradient;
  std::vector<std::byte*> states;  ///< of the parameter's type, kFloat beside half types

  at::Tensor laid_out_gradient;             ///< owns what `gradient` points to
  std::vector<at::Tensor> laid_out_states;  ///< own what `states` point to
};

/// Throws if they are not what update_parameters() asks for.
void check_update(const at::Tensor& parameter, const at::Tensor& gradient,
                  const std::vector<at::Tensor>& states,
                  const std::vector<std::string>& state_names);

/// Of what check_update() let pass. Copies the gradient and states that lie otherwise in memory
/// than the parameter.
ParameterArrays arrays_of(const at::Tensor& parameter, const at::Tensor& gradient,
                          const std::vector<at::Tensor>& states);

/// After the update: copies states back that arrays_of() had to copy, and tells autograd that the
/// tensors have changed.
void store_arrays(const ParameterArrays& arrays, const at::Tensor& parameter,
                  const std::vector<at::Tensor>& states);

}  // namespace farandole
