// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#ifdef EXAMPLES_HAVE_OPENCV
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>

#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#endif

#include "images.h"

/// Images in a folder for each class, decoded by OpenCV, of different sizes. Classes are counted in
/// the order of their names, as torchvision's ImageFolder does.
class ImageFolder final : public Images {
 public:
  /// Throws std::runtime_error without such a folder, and without OpenCV.
  explicit ImageFolder(const std::filesystem::path& path) {
#ifndef EXAMPLES_HAVE_OPENCV
    throw std::runtime_error(
        "This program was built without OpenCV, which decodes the images of --data. Install it "
        "(Debian: libopencv-dev) and build again, or leave --data out to train on shapes.");
#endif
    if (!std::filesystem::is_directory(path)) {
      throw std::runtime_error(path.string() + " is not a folder. Images are expected in " +
                               path.string() + "/CLASS/NAME.jpeg.");
    }
    const std::vector<std::filesystem::path> folders = sorted(path);
    for (const auto& folder : folders) {
      if (!std::filesystem::is_directory(folder)) continue;
      for (const auto& file : sorted(folder)) files_.emplace_back(file.string(), classes_);
      ++classes_;
    }
  }

  size_t size() const override { return files_.size(); }
  int64_t classes() const override { return classes_; }
  Example get(size_t index) const override {
#ifdef EXAMPLES_HAVE_OPENCV
    const auto& [path, label] = files_[index];
    cv::Mat pixels = cv::imread(path, cv::IMREAD_COLOR);
    if (pixels.empty()) throw std::runtime_error(path + " is not an image");
    cv::cvtColor(pixels, pixels, cv::COLOR_BGR2RGB);
    const at::Tensor rows = at::from_blob(pixels.data, {pixels.rows, pixels.cols, 3}, at::kByte);
    return {rows.permute({2, 0, 1}).to(at::kFloat).div(255).contiguous(),
            at::scalar_tensor(label, at::kLong)};
#else
    return {};  // the constructor has thrown
#endif
  }

 private:
  static std::vector<std::filesystem::path> sorted(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> found;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  std::vector<std::pair<std::string, int64_t>> files_;
  int64_t classes_ = 0;
};
