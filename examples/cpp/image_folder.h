// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/ops/scalar_tensor.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "decoded_image.h"
#include "images.h"

/// Images in a folder for each class, of different sizes. Classes are counted in the order of their
/// names, as torchvision's ImageFolder does.
class ImageFolder final : public Images {
 public:
  /// Throws std::runtime_error without such a folder, and without OpenCV.
  explicit ImageFolder(const std::filesystem::path& path) {
    check_images_can_be_decoded();
    for (const auto& folder : sorted_files(path, "Images are expected in CLASS/NAME.jpeg there.")) {
      if (!std::filesystem::is_directory(folder)) continue;
      for (const auto& file : sorted_files(folder, "")) {
        files_.emplace_back(file.string(), classes());
      }
      names_.push_back(folder.filename().string());
    }
  }

  size_t size() const override { return files_.size(); }
  int64_t classes() const override { return static_cast<int64_t>(names_.size()); }
  const std::vector<std::string>& names() const { return names_; }  ///< of the classes
  Example get(size_t index) const override {
    const auto& [path, label] = files_[index];
    return {decoded_image(path).to(at::kFloat).div(255), at::scalar_tensor(label, at::kLong)};
  }

 private:
  std::vector<std::pair<std::string, int64_t>> files_;
  std::vector<std::string> names_;
};
