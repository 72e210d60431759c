// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <c10/core/DispatchKeySet.h>

#include <string>
#include <vector>

namespace farandole::sim {

/// Any operator of the CPU, on simulated tensors: its outputs are allocated at once, in the shapes
/// that the operator's meta kernel gives, and the CPU's kernel is launched on the current stream.
/// Where there is no meta kernel, shapes come from a run on zeros of the CPU. Operators whose
/// outputs depend on data wait for the stream.
void run_boxed(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack);

/// The operators that have waited since the last call, and why: "nonzero: its outputs depend on
/// data". Any thread.
std::vector<std::string> take_waiting_operators();

}  // namespace farandole::sim
