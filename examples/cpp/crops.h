// SPDX-License-Identifier: Apache-2.0
// Random resized crops and flips to learn from, crops of the centre to test with.
// examples/python/crops.py takes the same crops.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/rand.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "images.h"

/// (3, height, width), smoothed where it becomes smaller.
inline at::Tensor resize(const at::Tensor& image, int64_t height, int64_t width) {
  if (image.size(1) == height && image.size(2) == width) return image;
  return at::_upsample_bilinear2d_aa(image.unsqueeze(0), {height, width}, false).squeeze(0);
}

/// A part that has `smallest` to 1 of the area, 3:4 to 4:3, flipped half of the time: Szegedy et
/// al. 2014, arXiv:1409.4842, section 6; ten tries, then the largest square.
inline at::Tensor random_resized_crop(const at::Tensor& image, int64_t size, double smallest,
                                      const at::Generator& generator) {
  const int64_t height = image.size(1), width = image.size(2);
  const at::Tensor tries = at::rand({10, 4}, generator);
  const auto number = tries.accessor<float, 2>();
  int64_t rows = std::min(height, width), columns = rows;
  int64_t top = (height - rows) / 2, left = (width - columns) / 2;
  for (int64_t i = 0; i < 10; ++i) {
    const double area = number[i][0], shape = number[i][1], row = number[i][2],
                 column = number[i][3];
    const double pixels = static_cast<double>(height * width) * (smallest + (1 - smallest) * area);
    const double ratio = std::exp((2 * shape - 1) * std::log(4.0 / 3));
    const auto tall = std::llrint(std::sqrt(pixels / ratio));
    const auto wide = std::llrint(std::sqrt(pixels * ratio));
    if (tall < 1 || tall > height || wide < 1 || wide > width) continue;
    rows = tall;
    columns = wide;
    top = static_cast<int64_t>(row * static_cast<double>(height - rows + 1));
    left = static_cast<int64_t>(column * static_cast<double>(width - columns + 1));
    break;
  }
  const at::Tensor part = image.slice(1, top, top + rows).slice(2, left, left + columns);
  const at::Tensor resized = resize(part, size, size);
  return number[0][3] < 0.5 ? resized.flip(2) : resized;
}

/// The centre, 7/8 of the shorter side.
inline at::Tensor center_crop(const at::Tensor& image, int64_t size) {
  const auto height = static_cast<double>(image.size(1)),
             width = static_cast<double>(image.size(2));
  const double scale = static_cast<double>(size * 8 / 7) / std::min(height, width);
  const at::Tensor whole = resize(image, std::llrint(height * scale), std::llrint(width * scale));
  const int64_t top = (whole.size(1) - size) / 2, left = (whole.size(2) - size) / 2;
  return whole.slice(1, top, top + size).slice(2, left, left + size);
}

/// Images of one size, made from others. A random crop depends on the epoch and the index alone: a
/// training that goes on in the middle of an epoch sees what it would have seen, on any number of
/// ranks and threads. Loaders have copies, which share the epoch.
class Crops : public torch::data::datasets::Dataset<Crops> {
 public:
  static constexpr double kMean = 0.5, kDeviation = 0.25;  // of colours 0 to 1

  /// `smallest`: the smallest area of random crops; nullopt: the centre.
  Crops(std::shared_ptr<const Images> images, int64_t size, std::optional<double> smallest = {})
      : images_(std::move(images)), size_(size), smallest_(smallest) {}

  /// Before a pass through the data begins.
  void set_epoch(size_t epoch) { *epoch_ = epoch; }
  int64_t classes() const { return images_->classes(); }
  std::optional<size_t> size() const override { return images_->size(); }
  torch::data::Example<> get(size_t index) override {
    auto [image, label] = images_->get(index);
    if (smallest_) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>((*epoch_ << 32) + index);
      image = random_resized_crop(image, size_, *smallest_, generator);
    } else {
      image = center_crop(image, size_);
    }
    return {(image - kMean) / kDeviation, label};
  }

 private:
  std::shared_ptr<const Images> images_;
  int64_t size_;
  std::optional<double> smallest_;
  std::shared_ptr<std::atomic<uint64_t>> epoch_ = std::make_shared<std::atomic<uint64_t>>(0);
};
