// SPDX-License-Identifier: Apache-2.0
#include "optim/step/parameter_arrays.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include <sstream>

#include "farandole/error.h"

namespace farandole {
namespace {

template <class Value>
std::string in_words(const Value& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

std::string shape_of(const at::Tensor& tensor) {
  return in_words(tensor.scalar_type()) + in_words(tensor.sizes());
}

bool is_half(at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; }

bool is_known(at::ScalarType type) {
  return type == at::kFloat || type == at::kDouble || is_half(type) || type == at::kComplexFloat ||
         type == at::kComplexDouble;
}

/// Whether the tensor is defined, and strided in host memory.
void check_memory(const at::Tensor& tensor, const std::string& what) {
  if (!tensor.defined()) {
    throw InvalidArgument("update-undefined", "update_parameters got an undefined " + what + ".",
                          "it has no memory to read or write.",
                          "leave out parameters that have no gradient.");
  }
  if (!tensor.is_cpu()) {
    throw NotSupported(
        "update-device",
        "update_parameters cannot work on a " + what + " on " + in_words(tensor.device()) + ".",
        "fused updates run on the CPU.",
        "move the module with .cpu(), or use an optimizer of torch.optim.");
  }
  if (tensor.layout() == at::kStrided) return;
  throw NotSupported("update-layout",
                     "update_parameters cannot work on a " + what + " of layout " +
                         in_words(tensor.layout()) + ".",
                     "fused updates change every element, including those without a gradient.",
                     "pass tensor.to_dense(), or make the embedding with sparse=False.");
}

void check_parameter(const at::Tensor& parameter) {
  check_memory(parameter, "parameter");
  if (!is_known(parameter.scalar_type())) {
    throw InvalidArgument(
        "update-dtype",
        "update_parameters cannot work on a parameter of dtype " +
            in_words(parameter.scalar_type()) + ".",
        "fused updates compute in float32 and float64.",
        "use parameters of a float32, float64, float16, bfloat16 or complex dtype.");
  }
  const bool is_dense = parameter.is_non_overlapping_and_dense();
  if (is_dense && !parameter.is_conj() && !parameter.is_neg()) return;
  throw InvalidArgument("update-strides",
                        "update_parameters cannot store into a parameter that is a view with gaps, "
                        "overlaps, conjugation or negation (" +
                            shape_of(parameter) + ", strides " + in_words(parameter.strides()) +
                            ").",
                        "fused updates need all elements in one contiguous range of memory.",
                        "make the parameter from tensor.clone().");
}

void check_like(const at::Tensor& tensor, const std::string& what, at::ScalarType type,
                const at::Tensor& parameter) {
  check_memory(tensor, what);
  if (tensor.sizes() == parameter.sizes() && tensor.scalar_type() == type) return;
  throw InvalidArgument("update-tensor-type",
                        "update_parameters got a " + what + " " + shape_of(tensor) +
                            " for a parameter " + shape_of(parameter) + ".",
                        "it must be " + in_words(type) + in_words(parameter.sizes()) +
                            ": gradients and states have the dtype and shape of the parameter, but "
                            "states of half types are float32.",
                        "convert it, or make a new one of zeros.");
}

/// Whether the elements of both tensors have the same order in memory. Shapes are equal.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  if (a.is_conj() || a.is_neg()) return false;
  const at::IntArrayRef sizes = a.sizes();
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] != 1 && a.strides()[d] != b.strides()[d]) return false;
  }
  return true;
}

at::Tensor laid_out_as(const at::Tensor& tensor, const at::Tensor& model) {
  if (tensor.numel() == 0 || lie_alike(tensor, model)) return tensor;
  return at::empty_strided(model.sizes(), model.strides(), tensor.options()).copy_(tensor);
}

void mark_changed(const at::Tensor& tensor) {
  if (!tensor.is_inference()) tensor.unsafeGetTensorImpl()->bump_version();
}

}  // namespace

void check_update(const at::Tensor& parameter, const at::Tensor& gradient,
                  const std::vector<at::Tensor>& states,
                  const std::vector<std::string>& state_names) {
  check_parameter(parameter);
  const at::ScalarType type = parameter.scalar_type();
  check_like(gradient, "gradient", type, parameter);
  if (states.size() != state_names.size()) {
    throw InvalidArgument("update-state-count",
                          "update_parameters got " + std::to_string(states.size()) +
                              " states of a parameter instead of " +
                              std::to_string(state_names.size()) + ".",
                          "the rule names its states in state_names().",
                          "pass one tensor for each name, in that order.");
  }
  for (size_t s = 0; s < states.size(); ++s) {
    check_like(states[s], "state '" + state_names[s] + "'", is_half(type) ? at::kFloat : type,
               parameter);
  }
}

ParameterArrays arrays_of(const at::Tensor& parameter, const at::Tensor& gradient,
                          const std::vector<at::Tensor>& states) {
  const at::NoGradGuard no_grad;
  const bool is_complex = parameter.is_complex();
  ParameterArrays arrays;
  arrays.type = c10::toRealValueType(parameter.scalar_type());
  arrays.elements = parameter.numel() * (is_complex ? 2 : 1);
  arrays.parameter = parameter.mutable_data_ptr();
  arrays.laid_out_gradient = laid_out_as(gradient, parameter);
  arrays.gradient = arrays.laid_out_gradient.const_data_ptr();
  for (const at::Tensor& state : states) {
    arrays.laid_out_states.push_back(laid_out_as(state, parameter));
    arrays.states.push_back(
        static_cast<std::byte*>(arrays.laid_out_states.back().mutable_data_ptr()));
  }
  return arrays;
}

void store_arrays(const ParameterArrays& arrays, const at::Tensor& parameter,
                  const std::vector<at::Tensor>& states) {
  const at::NoGradGuard no_grad;
  mark_changed(parameter);
  for (size_t s = 0; s < states.size(); ++s) {
    if (arrays.laid_out_states[s].is_same(states[s])) {
      mark_changed(states[s]);
    } else {
      states[s].copy_(arrays.laid_out_states[s]);
    }
  }
}

}  // namespace farandole
