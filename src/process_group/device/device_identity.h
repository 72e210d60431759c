// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Device.h>

#include <string>

namespace farandole {

/// Names a device among those of all hosts, by what NCCL compares to refuse several ranks on one
/// device: the host (NCCL_HOSTID, else its name and boot id) and the PCI bus. Empty where the
/// device has none, or with NCCL_MULTI_RANK_GPU_ENABLE=1. Any thread.
std::string identity_of(c10::Device device);

}  // namespace farandole
