// SPDX-License-Identifier: Apache-2.0
// Images of shapes, drawn from their index: data for examples that need no download.
// examples/python/shapes.py draws the same images.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/atan2.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <vector>

#include "images.h"

/// Circle, triangle, square, star, ring, cross, half moon, bar.
constexpr int64_t kKinds = 8;
constexpr double kNoise = 0.1;  // standard deviation; colours are 0 to 1
constexpr double kPi = 3.14159265358979323846;

/// Whether points are within a regular polygon whose corners have radius 1.
inline at::Tensor polygon(int sides, const at::Tensor& radius, const at::Tensor& angle) {
  const double half = kPi / sides;
  return radius * at::cos(at::remainder(angle, 2 * half) - half) < std::cos(half);
}

/// Whether points are within a shape of radius 1 around the origin.
inline at::Tensor inside(int64_t kind, const at::Tensor& x, const at::Tensor& y) {
  const at::Tensor radius = at::sqrt(x * x + y * y), angle = at::atan2(y, x);
  const at::Tensor near = at::minimum(x.abs(), y.abs()), far = at::maximum(x.abs(), y.abs());
  switch (kind) {
    case 0:
      return radius < 1;
    case 1:
      return polygon(3, radius, angle);
    case 2:
      return polygon(4, radius, angle);
    case 3:
      return radius < 0.6 + 0.4 * at::cos(5 * angle);
    case 4:
      return (radius < 1) & (radius > 0.6);
    case 5:
      return (near < 0.3) & (far < 1);
    case 6:
      return (radius < 1) & (y > 0);
    default:
      return (x.abs() < 1) & (y.abs() < 0.3);
  }
}

/// Bright shapes, each one upon those before it, on a dark ground with noise. The label is a mask:
/// of each pixel the kind plus 1, or 0 for the ground. `spread`: the part of the image, one way, in
/// which centres of shapes are.
inline Images::Example draw(const std::vector<int64_t>& kinds, int64_t side,
                            const at::Generator& generator, double spread = 0.3) {
  const at::Tensor axis = at::arange(side, at::kFloat) / side;
  at::Tensor image = (0.5 * at::rand({3, 1, 1}, generator)).expand({3, side, side});
  at::Tensor mask = at::zeros({side, side}, at::kLong);
  for (const int64_t kind : kinds) {
    const at::Tensor numbers = at::rand({7}, generator);
    const auto number = [&](int64_t i) -> double { return numbers[i].item<float>(); };
    const at::Tensor x = axis.unsqueeze(0) - (0.5 + spread * (number(0) - 0.5));
    const at::Tensor y = axis.unsqueeze(1) - (0.5 + spread * (number(1) - 0.5));
    const double radius = 0.2 + 0.15 * number(2), angle = 2 * kPi * number(3);
    const at::Tensor along = (std::cos(angle) / radius) * x + (std::sin(angle) / radius) * y;
    const at::Tensor across = (std::cos(angle) / radius) * y - (std::sin(angle) / radius) * x;
    const at::Tensor shape = inside(kind, along, across);
    image = at::where(shape, 0.5 + 0.5 * numbers.slice(0, 4).view({3, 1, 1}), image);
    mask = at::where(shape, at::scalar_tensor(kind + 1, at::kLong), mask);
  }
  return {image + kNoise * at::randn({3, side, side}, generator), mask};
}

/// One shape in each image, and its kind. Other seeds give other images.
class Shapes final : public Images {
 public:
  Shapes(size_t count, int64_t side, uint64_t seed) : count_(count), side_(side), seed_(seed) {}
  size_t size() const override { return count_; }
  int64_t classes() const override { return kKinds; }
  Example get(size_t index) const override {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>((seed_ << 32) + index);
    const auto kind = static_cast<int64_t>(index) % kKinds;
    return {draw({kind}, side_, generator).image, at::scalar_tensor(kind, at::kLong)};
  }

 private:
  size_t count_;
  int64_t side_;
  uint64_t seed_;
};

/// Several shapes in each image, and the class of each pixel: 0 is the ground.
class ShapeMasks final : public Images {
 public:
  ShapeMasks(size_t count, int64_t side, uint64_t seed, int64_t shapes = 2)
      : count_(count), side_(side), seed_(seed), shapes_(shapes) {}
  size_t size() const override { return count_; }
  int64_t classes() const override { return kKinds + 1; }
  Example get(size_t index) const override {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>((seed_ << 32) + index);
    const at::Tensor kinds = at::randint(kKinds, {shapes_}, generator, at::kLong);
    const auto* first = kinds.const_data_ptr<int64_t>();
    return draw({first, first + shapes_}, side_, generator, /*spread=*/0.6);
  }

 private:
  size_t count_;
  int64_t side_;
  uint64_t seed_;
  int64_t shapes_;
};
