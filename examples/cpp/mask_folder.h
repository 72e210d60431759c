// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/_upsample_bilinear2d_aa.h>
#include <ATen/ops/upsample_nearest2d.h>

#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#include "decoded_image.h"
#include "images.h"

/// `path`/images/NAME.jpeg and `path`/masks/NAME.png, whose gray values are classes of pixels.
/// Images become (3, side, side), masks (side, side) by the nearest pixel.
class MaskFolder final : public Images {
 public:
  /// Throws std::runtime_error without such files, and without OpenCV.
  MaskFolder(const std::filesystem::path& path, int64_t side, int64_t classes)
      : side_(side), classes_(classes) {
    check_images_can_be_decoded();
    images_ = sorted_files(path / "images", "Images are expected there.");
    masks_ = sorted_files(path / "masks", "Masks are expected there.");
    bool fit = !images_.empty() && images_.size() == masks_.size();
    for (size_t i = 0; fit && i < images_.size(); ++i) fit = images_[i].stem() == masks_[i].stem();
    if (!fit) throw std::runtime_error(path.string() + ": images and masks need equal names.");
  }

  size_t size() const override { return images_.size(); }
  int64_t classes() const override { return classes_; }
  Example get(size_t index) const override {
    const at::Tensor image = decoded_image(images_[index].string()).to(at::kFloat).div(255);
    const at::Tensor gray = decoded_image(masks_[index].string(), /*gray=*/true).to(at::kFloat);
    const at::Tensor mask =
        at::upsample_nearest2d(gray.unsqueeze(0), {side_, side_})[0][0].to(at::kLong);
    if (const auto most = mask.max().item<int64_t>(); most >= classes_) {
      throw std::runtime_error(masks_[index].string() + " has a class " + std::to_string(most) +
                               ", and --classes is " + std::to_string(classes_));
    }
    return {at::_upsample_bilinear2d_aa(image.unsqueeze(0), {side_, side_}, false).squeeze(0),
            mask};
  }

 private:
  int64_t side_, classes_;
  std::vector<std::filesystem::path> images_, masks_;
};
