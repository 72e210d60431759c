// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <farandole/farandole.h>

#include <cstdint>
#include <stdexcept>
#include <string>

/// Throws std::invalid_argument if ranks cannot share a step, or if no step or test would have
/// images. `batch`: images of a step, over all ranks; `data`: those to learn from, and to test
/// with.
template <class Data>
Data checked(Data data, int64_t batch) {
  const std::string option = "--batch " + std::to_string(batch) + ": ";
  const int ranks = farandole::world_size();
  if (batch < 1 || batch % ranks != 0) {
    throw std::invalid_argument(option + std::to_string(ranks) + " ranks cannot share it");
  }
  const auto images = static_cast<int64_t>(*data.first.size());
  if (images < batch) {
    throw std::invalid_argument(option + "there are only " + std::to_string(images) +
                                " images to learn from");
  }
  if (*data.second.size() == 0) throw std::invalid_argument("There are no images to test with.");
  return data;
}
