// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace farandole::checkpoint {

/// A text is no JSON, or a value has another type than was asked for. The text says what and where.
class JsonError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// A JSON value (RFC 8259). Objects keep the order of their members. Whole numbers of 64 bits stay
/// exact; other numbers are float64, and NaN and infinities, which JSON has not, are refused.
///
/// Written by hand because safetensors files need it and no JSON library is on every machine that
/// has torch. Threads: as a standard container.
class Json {
 public:
  using Array = std::vector<Json>;
  using Object = std::vector<std::pair<std::string, Json>>;
  /// Values within values; deeper ones are refused.
  static constexpr size_t kMostNested = 512;

  Json() = default;
  Json(bool value) : value_(value) {}
  Json(int64_t value) : value_(value) {}
  Json(double value) : value_(value) {}
  Json(std::string value) : value_(std::move(value)) {}
  Json(const char* value) : value_(std::string(value)) {}
  Json(Array value) : value_(std::move(value)) {}
  Json(Object value) : value_(std::move(value)) {}

  /// Throws JsonError, also for what follows the value and for a name that an object has twice.
  static Json parse(std::string_view text);
  /// Without blanks.
  std::string dump() const;

  bool is_null() const { return std::holds_alternative<std::monostate>(value_); }
  bool is_object() const { return std::holds_alternative<Object>(value_); }
  bool is_array() const { return std::holds_alternative<Array>(value_); }
  bool is_string() const { return std::holds_alternative<std::string>(value_); }
  bool is_bool() const { return std::holds_alternative<bool>(value_); }
  bool is_integer() const { return std::holds_alternative<int64_t>(value_); }
  bool is_number() const { return is_integer() || std::holds_alternative<double>(value_); }

  // All throw JsonError for another type. `what` names the value in the text.
  bool boolean(const char* what = "a value") const;
  int64_t integer(const char* what = "a value") const;
  double number(const char* what = "a value") const;
  const std::string& string(const char* what = "a value") const;
  const Array& array(const char* what = "a value") const;
  const Object& object(const char* what = "a value") const;

  /// A member of an object; null if there is none.
  const Json* find(std::string_view name) const;
  /// A member of an object; throws JsonError if there is none.
  const Json& at(std::string_view name) const;

 private:
  void write(std::string& to) const;

  std::variant<std::monostate, bool, int64_t, double, std::string, Array, Object> value_;
};

}  // namespace farandole::checkpoint
