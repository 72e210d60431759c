// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

#include "farandole/checkpoint/checkpoint_reader.h"
#include "farandole/checkpoint/slice_list.h"

namespace farandole::checkpoint {

// LibTorch's random number generators of this rank: that of the CPU, and that of the current GPU
// for a model that is on GPUs. Those of Python have the same keys.

void save_rng(bool on_gpu, SliceList& slices);

/// Reads what this rank has saved, and returns what sets the generators. Nothing, and an INFO line,
/// if other ranks have saved the checkpoint.
std::function<void()> load_rng(const CheckpointReader& reader, int rank, int world_size);

}  // namespace farandole::checkpoint
