// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nccl.h>

#include <cstddef>
#include <vector>

namespace farandole::sim::nccl {

/// 0 for types that are not simulated (float8).
size_t size_of(ncclDataType_t dtype);
const char* name_of(ncclDataType_t dtype);

/// output[i] = op over inputs of inputs[...][i], in the order of the inputs: the same bits on every
/// rank. Two-byte floats are reduced in float32 and rounded once. Integers wrap around. kAvg
/// divides the sum by the number of inputs; an operator made by ncclRedOpCreatePreMulSum is kSum of
/// scaled inputs. `output` may be one of the inputs.
void reduce(const std::vector<const char*>& inputs, char* output, size_t count,
            ncclDataType_t dtype, ncclRedOp_t op);
/// output[i] = input[i] * *factor, rounded to dtype.
void scale(const char* input, const char* factor, char* output, size_t count, ncclDataType_t dtype);

}  // namespace farandole::sim::nccl
