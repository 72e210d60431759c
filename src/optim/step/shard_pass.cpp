// SPDX-License-Identifier: Apache-2.0
#include "optim/step/shard_pass.h"

#include "optim/step/device_shard_pass.h"
#include "optim/step/host_shard_pass.h"

namespace farandole {

ShardPass::~ShardPass() = default;

std::unique_ptr<ShardPass> make_shard_pass(const ShardLayout& layout, const ShardRanks& ranks) {
  if (layout.is_on_accelerator()) return std::make_unique<DeviceShardPass>(layout, ranks);
  return std::make_unique<HostShardPass>(layout, ranks);
}

}  // namespace farandole
