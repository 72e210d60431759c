// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

namespace farandole {

// What a forward may return, taken apart into its tensors. For a type of your own, overload
// `append_tensors` in its namespace:
//
//   struct Output { torch::Tensor logits, loss; };
//   void append_tensors(const Output& output, std::vector<at::Tensor>& tensors) {
//     tensors.push_back(output.logits);
//     tensors.push_back(output.loss);
//   }

inline void append_tensors(const at::Tensor& tensor, std::vector<at::Tensor>& tensors) {
  tensors.push_back(tensor);
}

/// Numbers hold no tensors.
template <class T, std::enable_if_t<std::is_arithmetic_v<T> || std::is_enum_v<T>, int> = 0>
void append_tensors(const T&, std::vector<at::Tensor>&) {}

template <class T>
void append_tensors(const std::optional<T>& value, std::vector<at::Tensor>& tensors);
template <class First, class Second>
void append_tensors(const std::pair<First, Second>& pair, std::vector<at::Tensor>& tensors);
template <class... Parts>
void append_tensors(const std::tuple<Parts...>& parts, std::vector<at::Tensor>& tensors);
/// Any range: vectors, lists, maps of the above.
template <class Range, class = decltype(std::begin(std::declval<const Range&>())),
          std::enable_if_t<!std::is_convertible_v<const Range&, at::Tensor>, int> = 0>
void append_tensors(const Range& range, std::vector<at::Tensor>& tensors);

template <class T>
void append_tensors(const std::optional<T>& value, std::vector<at::Tensor>& tensors) {
  if (value) append_tensors(*value, tensors);
}

template <class First, class Second>
void append_tensors(const std::pair<First, Second>& pair, std::vector<at::Tensor>& tensors) {
  append_tensors(pair.first, tensors);
  append_tensors(pair.second, tensors);
}

template <class... Parts>
void append_tensors(const std::tuple<Parts...>& parts, std::vector<at::Tensor>& tensors) {
  std::apply([&](const Parts&... part) { (append_tensors(part, tensors), ...); }, parts);
}

template <class Range, class,
          std::enable_if_t<!std::is_convertible_v<const Range&, at::Tensor>, int>>
void append_tensors(const Range& range, std::vector<at::Tensor>& tensors) {
  for (const auto& element : range) append_tensors(element, tensors);
}

/// Every tensor in `output`.
template <class Output>
std::vector<at::Tensor> tensors_of(const Output& output) {
  std::vector<at::Tensor> tensors;
  append_tensors(output, tensors);
  return tensors;
}

}  // namespace farandole
