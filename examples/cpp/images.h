// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>

/// Images, and what is known of each.
struct Images {
  struct Example {
    at::Tensor image;  ///< (3, height, width) in 0..1
    at::Tensor label;  ///< the number of its class, or (height, width), those of its pixels
  };

  virtual ~Images() = default;
  virtual size_t size() const = 0;
  virtual int64_t classes() const = 0;
  /// Threads: those of a loader, all at once.
  virtual Example get(size_t index) const = 0;
};
