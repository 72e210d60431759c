// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include "support/simulated_nccl/control.h"

namespace farandole::sim::nccl {

using Injection = ncclSimulatedInjection;

/// Keeps an injection for the call that it is meant for. Any thread.
void inject(const Injection& injection);
/// Drops all injections whose call has not come yet. Any thread.
void drop_injections();
/// What is to happen to this call; counts the calls. Any thread.
std::optional<Injection> injected(const std::string& function, int rank);

}  // namespace farandole::sim::nccl
