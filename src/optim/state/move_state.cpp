// SPDX-License-Identifier: Apache-2.0
#include "optim/state/move_state.h"

#include <string>

#include "ddp/stream_use.h"
#include "optim/state/gather_shards.h"

namespace farandole {
namespace {

void make_array(ShardLayout& layout, size_t index, const std::string& name) {
  const ShardLayout::Parameter& parameter = layout.parameters()[index];
  if (parameter.part == ShardLayout::kNone) return;
  ShardLayout::Part& part = layout.parts()[parameter.part];
  if (name == kMasterParameter) return ShardLayout::make_masters(part);
  for (size_t bucket = 0; bucket < part.flat->plan().groups.size(); ++bucket) {
    for (const auto& slot : part.flat->plan().buckets.buckets[bucket].slots) {
      if (slot.parameter == parameter.index_in_part) part.state->make(name, bucket);
    }
  }
}

/// Keeps what this rank owns of the state of a parameter. One that does not have a half type any
/// more has no masters: the program has rounded it.
void take_state(ShardLayout& layout, size_t index, const std::string& name,
                const at::Tensor& state) {
  const ShardLayout::Parameter& parameter = layout.parameters()[index];
  if (parameter.part == ShardLayout::kNone) return;
  const bool is_half = c10::isReducedFloatingType(parameter.tensor.scalar_type());
  if (name == kMasterParameter && !is_half) return;
  const ShardLayout::Part& part = layout.parts()[parameter.part];
  for (const ShardPiece& piece : part.flat->pieces()) {
    if (piece.parameter != parameter.index_in_part) continue;
    part.state->piece(name, piece).copy_(state.narrow(0, piece.parameter_offset, piece.elements));
  }
}

}  // namespace

void make_arrays_of(const ShardLayout::Part& old, ShardLayout& layout) {
  const ShardPlan& plan = old.flat->plan();
  for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
    for (const std::string& name : old.state->names(bucket)) {
      for (const auto& slot : plan.buckets.buckets[bucket].slots) {
        make_array(layout, old.parameters[slot.parameter], name);
      }
    }
  }
}

void move_state(const ShardLayout::Part& old, const ShardRanks& ranks, ShardLayout& layout) {
  const ShardPlan& plan = old.flat->plan();
  for (size_t bucket = 0; bucket < plan.groups.size(); ++bucket) {
    for (const std::string& name : old.state->names(bucket)) {
      const at::Tensor shard = old.state->array(name, bucket);
      keep_for_current_stream(shard);  // it goes when the former plan does
      const at::Tensor all = gather_bucket(ranks, plan, bucket, shard, /*to=*/-1,
                                           gather_space(ranks, plan, bucket, shard, /*to=*/-1));
      for (const auto& slot : plan.buckets.buckets[bucket].slots) {
        take_state(layout, old.parameters[slot.parameter], name,
                   all.narrow(0, slot.offset, slot.elements));
      }
    }
  }
}

}  // namespace farandole
