// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/hooks/top_k_hook.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "ddp/finite_check.h"
#include "ddp/hooks/largest_elements.h"
#include "farandole/error.h"
#include "farandole/process_group/collectives.h"

namespace farandole {
namespace {

TopKOptions checked(const TopKOptions& options) {
  if (options.ratio > 0 && options.ratio <= 1) return options;
  throw InvalidArgument(
      "top-k-ratio", "TopKHook got the ratio " + std::to_string(options.ratio) + ".",
      "it is the fraction of the elements that is sent.", "pass a ratio above 0 and at most 1.");
}

/// The dtype in which sums and errors are kept.
at::ScalarType type_of_sums(const at::Tensor& buffer) {
  const at::ScalarType type = buffer.scalar_type();
  return type == at::kHalf || type == at::kBFloat16 ? at::kFloat : type;
}

at::ScalarType index_type_of(const at::Tensor& buffer) {
  return buffer.numel() <= std::numeric_limits<int32_t>::max() ? at::kInt : at::kLong;
}

/// What all ranks send of one bucket, in transfer: a row for each rank.
struct Gathered {
  at::Tensor values;
  at::Tensor indices;
  Work values_work;
  Work indices_work;
};

Gathered start_gather(const Group& group, const at::Tensor& values, const at::Tensor& indices) {
  const int64_t ranks = group->getSize();
  Gathered all{at::empty({ranks, values.numel()}, values.options()),
               at::empty({ranks, indices.numel()}, indices.options()), nullptr, nullptr};
  all.values_work = all_gather(all.values.view({-1}), values, {group, /*async=*/true});
  all.indices_work = all_gather(all.indices.view({-1}), indices, {group, /*async=*/true});
  return all;
}

/// Writes the mean of what the ranks sent, added up in rank order, to `buffer`.
void store_mean(const Gathered& all, at::Tensor buffer) {
  const at::ScalarType wide = type_of_sums(buffer);
  const bool in_place = wide == buffer.scalar_type();
  at::Tensor sum =
      in_place ? buffer.zero_() : at::zeros(buffer.sizes(), buffer.options().dtype(wide));
  for (int64_t rank = 0; rank < all.values.size(0); ++rank) {
    sum.index_add_(0, all.indices[rank], all.values[rank].to(wide));
  }
  sum.div_(all.values.size(0));
  if (!in_place) buffer.copy_(sum);
}

}  // namespace

/// The part of a bucket that was not sent, and the parameters that it belongs to.
struct TopKHook::Memory {
  at::Tensor error;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> parameters;

  bool is_of(const std::vector<at::Tensor>& others) const {
    return std::equal(parameters.begin(), parameters.end(), others.begin(), others.end(),
                      [](const auto& known, const at::Tensor& other) {
                        return known.lock().get() == other.unsafeGetTensorImpl();
                      });
  }
};

TopKHook::TopKHook(const Group& group, const TopKOptions& options)
    : group_(group ? group : default_group()), options_(checked(options)) {}
TopKHook::~TopKHook() = default;

void TopKHook::begin_plan() { memories_.clear(); }

/// The gradients plus the error of earlier steps; with feedback in the memory of the error.
at::Tensor TopKHook::with_error(const c10d::GradBucket& bucket) {
  const at::Tensor& buffer = bucket.getBuffer();
  if (!options_.use_error_feedback) return buffer;
  const auto options = buffer.options().dtype(type_of_sums(buffer));
  const std::vector<at::Tensor> parameters = bucket.getParameters();
  Memory& memory = memories_[bucket.getIndex()];
  at::Tensor& error = memory.error;
  if (!error.defined() || error.sizes() != buffer.sizes() || error.dtype() != options.dtype() ||
      error.device() != buffer.device() || !memory.is_of(parameters)) {
    error = at::zeros(buffer.sizes(), options);
    memory.parameters.clear();
    for (const at::Tensor& each : parameters)
      memory.parameters.emplace_back(each.getIntrusivePtr());
  }
  return error.add_(buffer);
}

c10::intrusive_ptr<c10::ivalue::Future> TopKHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  const double wanted = std::ceil(options_.ratio * static_cast<double>(buffer.numel()));
  const int64_t k = std::clamp(static_cast<int64_t>(wanted), std::min(int64_t{1}, buffer.numel()),
                               buffer.numel());
  at::Tensor left = with_error(bucket);
  const at::Tensor indices = largest_elements(left, k);
  const at::Tensor chosen = left.index_select(0, indices);
  const at::Tensor values = chosen.to(buffer.scalar_type());
  if (options_.use_error_feedback) {
    // The error of rounding to a half type is kept too. NaN and Inf, which are the largest
    // elements, are not kept, nor are the elements that were not chosen beside them.
    left.index_copy_(0, indices, (chosen - values).nan_to_num_(0, 0, 0));
    if (!is_finite(values)) left.nan_to_num_(0, 0, 0);
  }
  const Gathered all = start_gather(group_, values, indices.to(index_type_of(buffer)));
  return all.indices_work->getFuture()->then(
      [buffer, all](c10::ivalue::Future& done) -> c10::IValue {
        done.value();  // throws its error
        all.values_work->wait();
        store_mean(all, buffer);
        return buffer;
      },
      c10::TensorType::get());
}

}  // namespace farandole
