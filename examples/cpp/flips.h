// SPDX-License-Identifier: Apache-2.0
// Random flips of images and their masks. examples/python/flips.py makes the same flips.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/rand.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "crops.h"
#include "images.h"

/// Images and masks, flipped each way half of the time if `random`. A flip depends on the epoch and
/// the index alone. Loaders have copies, which share the epoch.
class Flips : public torch::data::datasets::Dataset<Flips> {
 public:
  Flips(std::shared_ptr<const Images> images, bool random)
      : images_(std::move(images)), random_(random) {}

  /// Before a pass through the data begins.
  void set_epoch(size_t epoch) { *epoch_ = epoch; }
  int64_t classes() const { return images_->classes(); }
  std::optional<size_t> size() const override { return images_->size(); }
  torch::data::Example<> get(size_t index) override {
    auto [image, mask] = images_->get(index);
    if (random_) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>((*epoch_ << 32) + index);
      const at::Tensor numbers = at::rand({2}, generator);
      std::vector<int64_t> dims;
      if (numbers[0].item<float>() < 0.5) dims.push_back(-1);
      if (numbers[1].item<float>() < 0.5) dims.push_back(-2);
      image = image.flip(dims);
      mask = mask.flip(dims);
    }
    return {(image - Crops::kMean) / Crops::kDeviation, mask};
  }

 private:
  std::shared_ptr<const Images> images_;
  bool random_;
  std::shared_ptr<std::atomic<uint64_t>> epoch_ = std::make_shared<std::atomic<uint64_t>>(0);
};
