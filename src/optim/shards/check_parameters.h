// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "farandole/comm/fingerprint.h"
#include "farandole/ddp/replica_group.h"

namespace farandole {

/// Throws InvalidArgument for what an optimizer cannot change.
void check_parameter(const at::Tensor& parameter, const std::string& name);
/// Throws InvalidArgument unless all are on one device.
void check_one_device(const std::vector<at::Tensor>& parameters);
/// Throws InvalidArgument for parameters in one place: they would become two, each with values of
/// its own.
void check_apart(const std::vector<at::Tensor>& parameters, const std::vector<std::string>& names);
/// Of the values of a parameter. The host waits for its device.
comm::Fingerprint fingerprint_of_values(const at::Tensor& parameter);
/// Throws InvalidArgument that says so of `rank` and rank 0.
[[noreturn]] void throw_that_parameters_differ(int rank, const ReplicaGroup& group);

}  // namespace farandole
