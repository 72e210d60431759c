// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <filesystem>
#include <stdexcept>
#include <string>
#include <vector>

#ifdef EXAMPLES_HAVE_OPENCV
#include <ATen/ops/from_blob.h>

#include <opencv2/imgcodecs.hpp>
#include <opencv2/imgproc.hpp>
#endif

/// Throws std::runtime_error in a program that was built without OpenCV.
inline void check_images_can_be_decoded() {
#ifndef EXAMPLES_HAVE_OPENCV
  throw std::runtime_error(
      "This program was built without OpenCV, which decodes the images of --data. Install it "
      "(Debian: libopencv-dev) and build again, or leave --data out to train on shapes.");
#endif
}

/// An image file as bytes: (3, height, width), or (1, height, width) in gray. Any thread.
inline at::Tensor decoded_image([[maybe_unused]] const std::string& path,
                                [[maybe_unused]] bool gray = false) {
#ifdef EXAMPLES_HAVE_OPENCV
  cv::Mat pixels = cv::imread(path, gray ? cv::IMREAD_GRAYSCALE : cv::IMREAD_COLOR);
  if (pixels.empty()) throw std::runtime_error(path + " is not an image");
  if (!gray) cv::cvtColor(pixels, pixels, cv::COLOR_BGR2RGB);
  const at::Tensor rows =
      at::from_blob(pixels.data, {pixels.rows, pixels.cols, pixels.channels()}, at::kByte);
  return rows.permute({2, 0, 1}).clone(at::MemoryFormat::Contiguous);
#else
  check_images_can_be_decoded();
  return {};
#endif
}

/// What is in a folder, by name. Throws std::runtime_error if it is none; `expected` says more.
inline std::vector<std::filesystem::path> sorted_files(const std::filesystem::path& folder,
                                                       const std::string& expected) {
  if (!std::filesystem::is_directory(folder)) {
    throw std::runtime_error(folder.string() + " is not a folder. " + expected);
  }
  std::vector<std::filesystem::path> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}
