// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "farandole/comm/types.h"

namespace farandole {

// Communicators move contiguous runs of elements; these functions make such runs of tensors and
// back. Strides are never sent: what peers agree on is the logical order of elements (row-major).

/// What a communicator is told about a tensor: its own element type, or bytes.
struct Wire {
  comm::DataType dtype;
  size_t count;
};
Wire wire_of(const at::Tensor& tensor);

/// Whether the memory of `tensor` is its elements in row-major order.
bool is_flat(const at::Tensor& tensor);
/// `tensor` itself if it is flat, else a flat copy.
at::Tensor flat_input(const at::Tensor& tensor);
/// `tensor` itself if it is flat, else uninitialized space of its shape.
at::Tensor flat_output(const at::Tensor& tensor);
/// Copies `flat` to `tensor` unless they are the same.
void store_flat(const at::Tensor& flat, const at::Tensor& tensor);

/// One flat tensor that holds those of `tensors` (all of one dtype) one after the other: the memory
/// they already share if they are neighbours in one storage, else a copy.
at::Tensor joined_input(const std::vector<at::Tensor>& tensors);
/// The same, uninitialized where it is not their own memory.
at::Tensor joined_output(const std::vector<at::Tensor>& tensors);
/// Copies the pieces of `joined` to `tensors` unless it is their memory.
void store_joined(const at::Tensor& joined, const std::vector<at::Tensor>& tensors);

/// Where a call allows no overlap of input and output at all.
constexpr size_t kNeverInPlace = static_cast<size_t>(-1);
/// `input`, or a copy of it if it overlaps `output` anywhere but with the smaller of the two
/// exactly at element `in_place_offset` of the larger. Both are flat.
at::Tensor apart_from(const at::Tensor& input, const at::Tensor& output, size_t in_place_offset);

}  // namespace farandole
