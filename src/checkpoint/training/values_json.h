// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>
#include <string>

#include "checkpoint/format/json.h"
#include "farandole/checkpoint/training.h"

namespace farandole::checkpoint {

// A program's values as JSON, with tensors apart, as Python's farandole.checkpoint.tree has them:
// what JSON has not is an object with one member whose name begins with "!".

/// Takes a tensor that becomes one of the checkpoint; `at`: where it is in the values. Returns its
/// key.
using TensorSink = std::function<std::string(const std::string& at, const at::Tensor& tensor)>;
/// The tensor of a key.
using TensorSource = std::function<at::Tensor(const std::string& key)>;

/// Throws InvalidArgument for a value of another class.
Json json_of(const CheckpointValues& values, const TensorSink& keep);
/// Throws JsonError. Sets become lists; Python's counters and dictionaries with other keys become
/// dictionaries.
CheckpointValues values_of(const Json& json, const TensorSource& tensor);

/// A float64, also one that JSON has not.
Json json_of(double number);
/// A number, or a tensor with one. Throws JsonError.
double number_of(const Json& json);
/// Whether the value is a tensor: of the checkpoint, or within the text.
bool is_tensor(const Json& json);
/// The tensor. Throws JsonError.
at::Tensor tensor_of(const Json& json, const TensorSource& tensor);
/// A scalar tensor of float32 within the text, as torch's optimizers count their steps.
Json float_scalar(float value);

}  // namespace farandole::checkpoint
