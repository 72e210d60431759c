// SPDX-License-Identifier: Apache-2.0
#include "debugger/measures.h"

#include <ATen/ops/abs.h>
#include <ATen/ops/count_nonzero.h>
#include <ATen/ops/isinf.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/max.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/min.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/std.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/var.h>
#include <c10/core/ScalarType.h>

#include <cmath>
#include <functional>
#include <map>

#include "farandole/error.h"

namespace farandole::debugger {
namespace {

using checkpoint::Json;
using Reduction = std::function<at::Tensor(const at::Tensor&)>;

/// Of a sample; 0 of a single element.
int64_t correction(const at::Tensor& tensor) { return tensor.numel() > 1 ? 1 : 0; }

const std::map<std::string, Reduction>& reductions() {
  static const auto* const all = new std::map<std::string, Reduction>{
      {"min", [](const at::Tensor& x) { return at::min(x); }},
      {"max", [](const at::Tensor& x) { return at::max(x); }},
      {"mean", [](const at::Tensor& x) { return at::mean(x); }},
      {"std",
       [](const at::Tensor& x) { return at::std(x, std::nullopt, at::Scalar(correction(x))); }},
      {"variance",
       [](const at::Tensor& x) { return at::var(x, std::nullopt, at::Scalar(correction(x))); }},
      {"sum", [](const at::Tensor& x) { return at::sum(x); }},
      {"prod", [](const at::Tensor& x) { return at::prod(x); }},
      {"l1", [](const at::Tensor& x) { return at::linalg_vector_norm(x, 1); }},
      {"l2", [](const at::Tensor& x) { return at::linalg_vector_norm(x); }},
  };
  return *all;
}

constexpr const char* kAbsolute = "abs_";

bool is_absolute(const std::string& name) { return name.rfind(kAbsolute, 0) == 0; }

std::string plain(const std::string& name) { return is_absolute(name) ? name.substr(4) : name; }

at::Tensor computable(at::Tensor tensor) {
  if (tensor.layout() != at::kStrided) tensor = tensor.to_dense();
  if (tensor.is_complex()) tensor = tensor.abs();
  if (!tensor.is_floating_point()) return tensor.to(at::kDouble);
  return tensor.element_size() < 4 ? tensor.to(at::kFloat) : tensor;
}

}  // namespace

void check_reductions(const std::vector<std::string>& names) {
  std::string known;
  for (const auto& [name, reduction] : reductions()) known += (known.empty() ? "" : ", ") + name;
  for (const std::string& name : names) {
    if (reductions().count(plain(name)) != 0) continue;
    throw InvalidArgument("debugger-reduction",
                          "the debugger was asked for the reduction '" + name + "'.",
                          "it knows " + known + " here.",
                          "ask for one of them, or set save_raw_tensor=True to have all elements.");
  }
}

Json storable(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

Json::Object measure(const at::Tensor& tensor, const std::vector<std::string>& names) {
  const at::Tensor values = computable(tensor.detach());
  Json::Object found;
  const bool is_empty = values.numel() == 0;
  const at::Tensor absolute = is_empty ? values : values.abs();
  for (const std::string& name : names) {
    Json number;
    if (!is_empty) {
      const at::Tensor& of = is_absolute(name) ? absolute : values;
      number = storable(reductions().at(plain(name))(of).item<double>());
    }
    found.emplace_back(name, number);
  }
  const auto count = [&](const at::Tensor& of) { return at::count_nonzero(of).item<int64_t>(); };
  found.emplace_back("zeros", is_empty ? 0 : values.numel() - count(values));
  found.emplace_back("nan", is_empty ? 0 : count(at::isnan(values)));
  found.emplace_back("inf", is_empty ? 0 : count(at::isinf(values)));
  return found;
}

}  // namespace farandole::debugger
