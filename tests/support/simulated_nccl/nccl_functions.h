// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cuda_runtime.h>

// The functions of nccl.h, visible outside of this library, whose other names are hidden.
#pragma GCC visibility push(default)
#include <nccl.h>
#pragma GCC visibility pop
