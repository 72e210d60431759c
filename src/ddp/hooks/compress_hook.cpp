// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/hooks/compress_hook.h"

#include <ATen/core/jit_type.h>
#include <ATen/ops/empty.h>

#include <string>

#include "ddp/gradient_move.h"
#include "ddp/hooks/average.h"
#include "farandole/error.h"

namespace farandole {
namespace {

CompressOptions checked(const CompressOptions& options) {
  if (c10::isReducedFloatingType(options.dtype) || options.dtype == at::kFloat) return options;
  throw InvalidArgument(
      "compress-dtype",
      std::string("CompressHook got the dtype ") + c10::toString(options.dtype) + ".",
      "gradients can be sent as a half type or as float32.",
      "pass at::kBFloat16, at::kHalf or at::kFloat.");
}

/// One half type is not cast to the other: each would lose what only the other can represent.
bool is_cast(at::ScalarType from, at::ScalarType to) {
  const bool are_halves = c10::isReducedFloatingType(from) && c10::isReducedFloatingType(to);
  return c10::isFloatingType(from) && from != to && !are_halves;
}

}  // namespace

CompressHook::CompressHook(const Group& group, const CompressOptions& options)
    : group_(group ? group : default_group()), options_(checked(options)) {}
CompressHook::~CompressHook() = default;

at::Tensor CompressHook::wire_for(const c10d::GradBucket& bucket) {
  at::Tensor& wire = wires_[bucket.getIndex()];
  const at::Tensor& buffer = bucket.getBuffer();
  if (!wire.defined() || wire.sizes() != buffer.sizes() || wire.device() != buffer.device()) {
    wire = at::empty(buffer.sizes(), buffer.options().dtype(options_.dtype));
  }
  return wire;
}

c10::intrusive_ptr<c10::ivalue::Future> CompressHook::runHook(c10d::GradBucket& bucket) {
  const at::Tensor buffer = bucket.getBuffer();
  if (!is_cast(buffer.scalar_type(), options_.dtype)) {
    return start_average(group_, buffer)->getFuture();
  }
  const at::Tensor wire = wire_for(bucket);
  const Average average = average_of(group_, wire);
  move_gradient(buffer, wire, {average.factor});
  const Work work = all_reduce(wire, {average.op, group_, /*async=*/true});
  return work->getFuture()->then(
      [buffer, wire](c10::ivalue::Future& done) -> c10::IValue {
        done.value();  // throws its error
        move_gradient(wire, buffer, {});
        return buffer;
      },
      c10::TensorType::get());
}

}  // namespace farandole
