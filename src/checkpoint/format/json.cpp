// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/format/json.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <unordered_set>

namespace farandole::checkpoint {
namespace {

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  Json whole() {
    Json value = parse_value(0);
    skip_blanks();
    if (at_ != text_.size()) fail("there is more behind the value");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& why) const {
    throw JsonError(why + ", at byte " + std::to_string(at_));
  }

  void skip_blanks() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\t' || text_[at_] == '\n' || text_[at_] == '\r')) {
      ++at_;
    }
  }

  char peek() {
    skip_blanks();
    if (at_ == text_.size()) fail("it ends too early");
    return text_[at_];
  }

  bool take(char wanted) {
    if (peek() != wanted) return false;
    ++at_;
    return true;
  }

  void expect(char wanted) {
    if (!take(wanted)) fail(std::string("'") + wanted + "' is missing");
  }

  void expect_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) fail("it is no JSON value");
    at_ += word.size();
  }

  Json parse_value(size_t depth) {
    if (depth == Json::kMostNested) fail("values are nested too deeply");
    switch (peek()) {
      case '{':
        return parse_object(depth);
      case '[':
        return parse_array(depth);
      case '"':
        return parse_string();
      case 't':
        expect_word("true");
        return true;
      case 'f':
        expect_word("false");
        return false;
      case 'n':
        expect_word("null");
        return {};
      default:
        return parse_number();
    }
  }

  Json parse_object(size_t depth) {
    Json::Object members;
    std::unordered_set<std::string> names;
    expect('{');
    if (take('}')) return members;
    do {
      if (peek() != '"') fail("the name of a member is missing");
      std::string name = parse_string();
      if (!names.insert(name).second) fail("an object has '" + name + "' twice");
      expect(':');
      Json value = parse_value(depth + 1);
      members.emplace_back(std::move(name), std::move(value));
    } while (take(','));
    expect('}');
    return members;
  }

  Json parse_array(size_t depth) {
    Json::Array values;
    expect('[');
    if (take(']')) return values;
    do {
      values.push_back(parse_value(depth + 1));
    } while (take(','));
    expect(']');
    return values;
  }

  uint32_t parse_hex() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char digit = at_ < text_.size() ? text_[at_] : '\0';
      uint32_t value = 0;
      if (digit >= '0' && digit <= '9') {
        value = static_cast<uint32_t>(digit - '0');
      } else if (digit >= 'a' && digit <= 'f') {
        value = static_cast<uint32_t>(digit - 'a') + 10;
      } else if (digit >= 'A' && digit <= 'F') {
        value = static_cast<uint32_t>(digit - 'A') + 10;
      } else {
        fail("\\u needs four hexadecimal digits");
      }
      code = code * 16 + value;
      ++at_;
    }
    return code;
  }

  static void append_utf8(std::string& to, uint32_t code) {
    const auto put = [&](uint32_t byte) { to.push_back(static_cast<char>(byte)); };
    if (code < 0x80) {
      put(code);
    } else if (code < 0x800) {
      put(0xc0 | (code >> 6));
      put(0x80 | (code & 0x3f));
    } else if (code < 0x10000) {
      put(0xe0 | (code >> 12));
      put(0x80 | ((code >> 6) & 0x3f));
      put(0x80 | (code & 0x3f));
    } else {
      put(0xf0 | (code >> 18));
      put(0x80 | ((code >> 12) & 0x3f));
      put(0x80 | ((code >> 6) & 0x3f));
      put(0x80 | (code & 0x3f));
    }
  }

  /// Behind \u.
  void parse_unicode(std::string& to) {
    uint32_t code = parse_hex();
    if (code >= 0xdc00 && code < 0xe000) fail("the second half of a surrogate pair is alone");
    if (code >= 0xd800 && code < 0xdc00) {
      if (text_.substr(at_, 2) != "\\u") fail("the first half of a surrogate pair is alone");
      at_ += 2;
      const uint32_t low = parse_hex();
      if (low < 0xdc00 || low >= 0xe000) fail("the second half of a surrogate pair is missing");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    append_utf8(to, code);
  }

  void parse_escape(std::string& to) {
    const char escape = at_ < text_.size() ? text_[at_++] : '\0';
    switch (escape) {
      case '"':
      case '\\':
      case '/':
        return to.push_back(escape);
      case 'b':
        return to.push_back('\b');
      case 'f':
        return to.push_back('\f');
      case 'n':
        return to.push_back('\n');
      case 'r':
        return to.push_back('\r');
      case 't':
        return to.push_back('\t');
      case 'u':
        return parse_unicode(to);
      default:
        fail("a string has an unknown escape");
    }
  }

  std::string parse_string() {
    std::string value;
    expect('"');
    for (;;) {
      if (at_ == text_.size()) fail("a string does not end");
      const char c = text_[at_++];
      if (c == '"') return value;
      if (c == '\\') {
        parse_escape(value);
      } else if (static_cast<unsigned char>(c) < 0x20) {
        fail("a string has a control character");
      } else {
        value.push_back(c);
      }
    }
  }

  void skip_digits() {
    const size_t first = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    if (at_ == first) fail("it is no JSON value");
  }

  Json parse_number() {
    const size_t first = at_;
    bool is_whole = true;
    if (text_[at_] == '-') ++at_;
    const size_t digits = at_;
    skip_digits();
    if (text_[digits] == '0' && at_ > digits + 1) fail("a number begins with 0");
    if (at_ < text_.size() && text_[at_] == '.') {
      is_whole = false;
      ++at_;
      skip_digits();
    }
    if (at_ < text_.size() && (text_[at_] == 'e' || text_[at_] == 'E')) {
      is_whole = false;
      ++at_;
      if (at_ < text_.size() && (text_[at_] == '+' || text_[at_] == '-')) ++at_;
      skip_digits();
    }
    const std::string_view token = text_.substr(first, at_ - first);
    if (is_whole) {
      int64_t value = 0;
      const auto end = token.data() + token.size();
      const auto [stop, error] = std::from_chars(token.data(), end, value);
      if (error == std::errc() && stop == end) return value;
    }
    double value = 0;
    const auto [stop, error] = std::from_chars(token.data(), token.data() + token.size(), value);
    if (error != std::errc() || stop != token.data() + token.size()) {
      fail("a number is out of range");
    }
    return value;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

void write_string(std::string& to, const std::string& value) {
  to.push_back('"');
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      to.push_back('\\');
      to.push_back(c);
    } else if (byte < 0x20) {
      constexpr char kDigits[] = "0123456789abcdef";
      to += "\\u00";
      to.push_back(kDigits[byte >> 4]);
      to.push_back(kDigits[byte & 15]);
    } else {
      to.push_back(c);
    }
  }
  to.push_back('"');
}

template <class T>
void write_number(std::string& to, T value) {
  char buffer[40];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof(buffer), value);
  if (error != std::errc()) throw JsonError("a number could not be written");
  to.append(buffer, end);
}

template <class T, class Value>
const T& as(const Value& value, const char* what, const char* type) {
  if (const T* const found = std::get_if<T>(&value)) return *found;
  throw JsonError(std::string(what) + " is no " + type);
}

}  // namespace

Json Json::parse(std::string_view text) { return Parser(text).whole(); }

std::string Json::dump() const {
  std::string text;
  write(text);
  return text;
}

void Json::write(std::string& to) const {
  if (is_null()) {
    to += "null";
  } else if (const auto* const flag = std::get_if<bool>(&value_)) {
    to += *flag ? "true" : "false";
  } else if (const auto* const whole = std::get_if<int64_t>(&value_)) {
    write_number(to, *whole);
  } else if (const auto* const real = std::get_if<double>(&value_)) {
    if (!std::isfinite(*real)) throw JsonError("JSON has no NaN and no infinity");
    const size_t first = to.size();
    write_number(to, *real);
    // 1e23 and 3 stay float64 when they are read.
    if (to.find_first_of(".e", first) == std::string::npos) to += ".0";
  } else if (const auto* const text = std::get_if<std::string>(&value_)) {
    write_string(to, *text);
  } else if (const auto* const values = std::get_if<Array>(&value_)) {
    to.push_back('[');
    for (size_t i = 0; i < values->size(); ++i) {
      if (i > 0) to.push_back(',');
      (*values)[i].write(to);
    }
    to.push_back(']');
  } else {
    const auto& members = std::get<Object>(value_);
    to.push_back('{');
    for (size_t i = 0; i < members.size(); ++i) {
      if (i > 0) to.push_back(',');
      write_string(to, members[i].first);
      to.push_back(':');
      members[i].second.write(to);
    }
    to.push_back('}');
  }
}

bool Json::boolean(const char* what) const { return as<bool>(value_, what, "bool"); }
int64_t Json::integer(const char* what) const {
  return as<int64_t>(value_, what, "whole number of 64 bits");
}
double Json::number(const char* what) const {
  return is_integer() ? static_cast<double>(integer()) : as<double>(value_, what, "number");
}
const std::string& Json::string(const char* what) const {
  return as<std::string>(value_, what, "string");
}
const Json::Array& Json::array(const char* what) const { return as<Array>(value_, what, "array"); }
const Json::Object& Json::object(const char* what) const {
  return as<Object>(value_, what, "object");
}

const Json* Json::find(std::string_view name) const {
  for (const auto& [own, value] : object("what should have members")) {
    if (own == name) return &value;
  }
  return nullptr;
}

const Json& Json::at(std::string_view name) const {
  if (const Json* const found = find(name)) return *found;
  throw JsonError("'" + std::string(name) + "' is missing");
}

}  // namespace farandole::checkpoint
