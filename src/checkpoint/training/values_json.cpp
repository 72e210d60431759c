// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/training/values_json.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>
#include <vector>

#include "farandole/error.h"

namespace farandole::checkpoint {
namespace {

constexpr std::pair<at::ScalarType, const char*> kDtypes[] = {{at::kDouble, "float64"},
                                                              {at::kFloat, "float32"},
                                                              {at::kHalf, "float16"},
                                                              {at::kBFloat16, "bfloat16"},
                                                              {at::kLong, "int64"},
                                                              {at::kInt, "int32"},
                                                              {at::kShort, "int16"},
                                                              {at::kChar, "int8"},
                                                              {at::kByte, "uint8"},
                                                              {at::kBool, "bool"},
                                                              {at::kComplexFloat, "complex64"},
                                                              {at::kComplexDouble, "complex128"}};

constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Base64 (RFC 4648).
std::string text_of_bytes(const std::string& bytes) {
  std::string text;
  for (size_t at = 0; at < bytes.size(); at += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - at);
    for (size_t i = 0; i < 3; ++i) {
      group = group << 8 | (i < count ? static_cast<unsigned char>(bytes[at + i]) : 0U);
    }
    for (size_t i = 0; i < 4; ++i) text += i <= count ? kDigits[group >> (18 - 6 * i) & 63] : '=';
  }
  return text;
}

std::string bytes_of_text(const std::string& text) {
  std::string bytes;
  uint32_t group = 0;
  int bits = 0;
  for (const char each : text) {
    if (each == '=') break;
    const char* const digit = std::strchr(kDigits, each);
    if (digit == nullptr || each == '\0') throw JsonError("a text is no base64");
    group = group << 6 | static_cast<uint32_t>(digit - kDigits);
    bits += 6;
    if (bits < 8) continue;
    bits -= 8;
    bytes += static_cast<char>(group >> bits & 255);
  }
  return bytes;
}

Json object(const char* kind, Json content) { return Json::Object{{kind, std::move(content)}}; }

/// The content of an object of this kind; null if it is none.
const Json* content_of(const Json& json, const char* kind) {
  if (!json.is_object() || json.object().size() != 1) return nullptr;
  return json.find(kind);
}

const char* kind_of(const Json& json) {
  for (const char* const kind :
       {"!int", "!float", "!complex", "!bytes", "!dtype", "!device", "!tuple", "!set", "!frozenset",
        "!pairs", "!counter", "!inline", "!tensor"}) {
    if (content_of(json, kind) != nullptr) return kind;
  }
  return nullptr;
}

/// Null if the text cannot have tensors of this dtype.
const char* name_of(at::ScalarType dtype) {
  for (const auto& [known, name] : kDtypes) {
    if (known == dtype) return name;
  }
  return nullptr;
}

Json inline_tensor(const at::Tensor& tensor) {
  const at::Tensor on_host = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous();
  Json::Array shape;
  for (const int64_t size : on_host.sizes()) shape.emplace_back(size);
  std::string data = text_of_bytes(
      std::string(static_cast<const char*>(on_host.const_data_ptr()), on_host.nbytes()));
  return object("!inline", Json::Object{{"dtype", name_of(on_host.scalar_type())},
                                        {"shape", std::move(shape)},
                                        {"data", std::move(data)}});
}

at::Tensor tensor_of_inline(const Json& content) {
  const std::string bytes = bytes_of_text(content.at("data").string("data"));
  std::vector<int64_t> shape;
  for (const Json& size : content.at("shape").array()) shape.push_back(size.integer("a size"));
  for (const auto& [dtype, name] : kDtypes) {
    if (content.at("dtype").string("a dtype") != name) continue;
    int64_t elements = 1;
    for (const int64_t size : shape) {
      if (size < 0 || __builtin_mul_overflow(elements, size, &elements)) elements = -1;
      if (elements < 0) throw JsonError("a shape is too large");
    }
    const auto expected = static_cast<uint64_t>(elements) * c10::elementSize(dtype);
    if (expected != bytes.size()) throw JsonError("a tensor has other bytes than its shape");
    at::Tensor tensor = at::empty(shape, dtype);
    if (!bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
    return tensor;
  }
  throw JsonError("a tensor has an unknown dtype");
}

constexpr int kMostNested = 200;  // values within values

/// Whether it may stand in JSON.
bool is_utf8(const std::string& text) {
  size_t at = 0;
  while (at < text.size()) {
    const auto first = static_cast<unsigned char>(text[at]);
    const size_t more = first < 0x80   ? 0
                        : first < 0xc2 ? 4
                        : first < 0xe0 ? 1
                        : first < 0xf0 ? 2
                                       : 3;
    if (more > 3 || first > 0xf4 || at + more >= text.size()) return false;
    for (size_t i = 1; i <= more; ++i) {
      if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) return false;
    }
    const auto second = more > 0 ? static_cast<unsigned char>(text[at + 1]) : 0;
    const bool is_wrong = (first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f) ||
                          (first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f);
    if (is_wrong) return false;
    at += more + 1;
  }
  return true;
}

[[noreturn]] void throw_name(const std::string& name) {
  throw InvalidArgument(
      "checkpoint-value-name",
      "the checkpoint got a value whose name is not UTF-8: " + text_of_bytes(name) + " in base64.",
      "it is written as JSON.", "give it another name.");
}

/// Those that come back.
void check_key(const c10::IValue& key, const std::string& at) {
  if (key.isString() || key.isInt() || key.isDouble() || key.isBool()) return;
  throw InvalidArgument(
      "checkpoint-key",
      "the checkpoint got a dictionary " + at + " with a key of the class " + key.tagKind() + ".",
      "keys are texts, numbers and bools.", "convert the key.");
}

/// What is no UTF-8 cannot be in JSON.
Json text_json(const std::string& text) {
  if (is_utf8(text)) return text;
  return object("!bytes", text_of_bytes(text));
}

[[noreturn]] void throw_nested(const std::string& at) {
  throw InvalidArgument("checkpoint-nested",
                        "the checkpoint got " + at.substr(0, at.find('/', at.find('/') + 1)) +
                            ", which is nested too deeply or contains itself.",
                        "it is written as JSON, in which values can be nested some hundred times.",
                        "save it in a flatter form.");
}

Json encoded(const c10::IValue& value, const std::string& at, const TensorSink& keep, int depth) {
  if (depth > kMostNested) throw_nested(at);
  if (value.isNone()) return {};
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return json_of(value.toDouble());
  if (value.isString()) return text_json(value.toStringRef());
  if (value.isDevice()) return object("!device", value.toDevice().str());
  if (value.isComplexDouble()) {
    const auto number = value.toComplexDouble();
    return object("!complex", Json::Array{json_of(number.real()), json_of(number.imag())});
  }
  if (value.isTensor()) {
    const at::Tensor& tensor = value.toTensor();
    if (!tensor.defined()) return {};
    const bool is_apart = tensor.numel() > 1 || name_of(tensor.scalar_type()) == nullptr;
    return is_apart ? object("!tensor", keep(at, tensor)) : inline_tensor(tensor);
  }
  const bool is_tuple = value.isTuple();
  if (is_tuple || value.isList()) {
    Json::Array all;
    const auto add = [&](const c10::IValue& each) {
      all.push_back(encoded(each, at + "/" + std::to_string(all.size()), keep, depth + 1));
    };
    if (is_tuple) {
      for (const c10::IValue& each : value.toTupleRef().elements()) add(each);
      return object("!tuple", std::move(all));
    }
    for (const c10::IValue& each : value.toListRef()) add(each);
    return all;
  }
  if (value.isGenericDict()) {
    Json::Object members;
    Json::Array pairs;
    bool is_plain = true;
    for (const auto& entry : value.toGenericDict()) {
      check_key(entry.key(), at);
      const bool has_name = entry.key().isString() && !entry.key().toStringRef().empty() &&
                            entry.key().toStringRef().front() != '!' &&
                            is_utf8(entry.key().toStringRef());
      const std::string name = has_name ? entry.key().toStringRef() : std::to_string(pairs.size());
      Json each = encoded(entry.value(), at + "/" + name, keep, depth + 1);
      if (has_name) members.emplace_back(name, each);
      is_plain = is_plain && has_name;
      pairs.emplace_back(Json::Array{encoded(entry.key(), at, keep, depth + 1), std::move(each)});
    }
    if (is_plain) return members;
    return object("!pairs", std::move(pairs));
  }
  throw InvalidArgument(
      "checkpoint-value", "the checkpoint got " + at + " of the class " + value.tagKind() + ".",
      "a checkpoint has numbers, strings, bytes, tensors, and lists, tuples, sets and dictionaries "
      "of these; nothing is pickled, so that loading runs no code.",
      "pass its state_dict(), or convert it.");
}

c10::IValue decoded(const Json& json, const TensorSource& tensor);

c10::IValue decoded_pairs(const Json& pairs, const TensorSource& tensor) {
  c10::impl::GenericDict dict(c10::AnyType::get(), c10::AnyType::get());
  for (const Json& pair : pairs.array()) {
    if (pair.array().size() != 2) throw JsonError("a pair has not two values");
    const c10::IValue key = decoded(pair.array()[0], tensor);
    if (!key.isString() && !key.isInt() && !key.isDouble() && !key.isBool()) {
      throw JsonError("a key is no text and no number");
    }
    dict.insert_or_assign(key, decoded(pair.array()[1], tensor));
  }
  return dict;
}

/// Lists of one type have it, so that toIntVector() and its like take them.
c10::IValue decoded_list(const Json& array, const TensorSource& tensor) {
  std::vector<c10::IValue> all;
  for (const Json& each : array.array()) all.push_back(decoded(each, tensor));
  const auto are = [&all](auto has_type) {
    return !all.empty() && std::all_of(all.begin(), all.end(), has_type);
  };
  c10::TypePtr type = c10::AnyType::get();
  if (are([](const c10::IValue& each) { return each.isInt(); })) type = c10::IntType::get();
  if (are([](const c10::IValue& each) { return each.isDouble(); })) type = c10::FloatType::get();
  if (are([](const c10::IValue& each) { return each.isBool(); })) type = c10::BoolType::get();
  if (are([](const c10::IValue& each) { return each.isString(); })) type = c10::StringType::get();
  if (are([](const c10::IValue& each) { return each.isTensor(); })) type = c10::TensorType::get();
  c10::impl::GenericList list(type);
  for (c10::IValue& each : all) list.push_back(std::move(each));
  return list;
}

c10::IValue decoded_tuple(const Json& array, const TensorSource& tensor) {
  std::vector<c10::IValue> elements;
  for (const Json& each : array.array()) elements.push_back(decoded(each, tensor));
  return c10::ivalue::Tuple::create(std::move(elements));
}

c10::IValue decoded_kind(const std::string& kind, const Json& json, const TensorSource& tensor) {
  const Json& content = json.at(kind);
  if (kind == "!tensor" || kind == "!inline") return tensor_of(json, tensor);
  if (kind == "!float") return number_of(json);
  if (kind == "!bytes") return bytes_of_text(content.string("bytes"));
  if (kind == "!dtype") return content.string("a dtype");
  if (kind == "!device") return c10::Device(content.string("a device"));
  if (kind == "!complex") {
    if (content.array().size() != 2) throw JsonError("a complex number has not two parts");
    return c10::complex<double>(number_of(content.array()[0]), number_of(content.array()[1]));
  }
  if (kind == "!tuple") return decoded_tuple(content, tensor);
  if (kind == "!set" || kind == "!frozenset") return decoded_list(content, tensor);
  if (kind == "!pairs" || kind == "!counter") return decoded_pairs(content, tensor);
  throw JsonError("a whole number has more than 64 bits");
}

c10::IValue decoded(const Json& json, const TensorSource& tensor) {
  if (json.is_null()) return {};
  if (json.is_bool()) return json.boolean();
  if (json.is_integer()) return json.integer();
  if (json.is_number()) return json.number();
  if (json.is_string()) return json.string();
  if (json.is_array()) return decoded_list(json, tensor);
  if (const char* const kind = kind_of(json)) return decoded_kind(kind, json, tensor);
  c10::impl::GenericDict dict(c10::StringType::get(), c10::AnyType::get());
  for (const auto& [name, each] : json.object()) {
    dict.insert_or_assign(name, decoded(each, tensor));
  }
  return dict;
}

}  // namespace

Json json_of(const CheckpointValues& values, const TensorSink& keep) {
  Json::Object members;
  Json::Array pairs;
  bool is_plain = true;
  for (const auto& [name, value] : values) {
    if (!is_utf8(name)) throw_name(name);
    is_plain = is_plain && (name.empty() || name.front() != '!');
    members.emplace_back(name, encoded(value, "values/" + name, keep, 0));
    pairs.emplace_back(Json::Array{name, members.back().second});
  }
  if (is_plain) return members;
  return object("!pairs", std::move(pairs));
}

CheckpointValues values_of(const Json& json, const TensorSource& tensor) {
  CheckpointValues values;
  if (const Json* const pairs = content_of(json, "!pairs")) {
    for (const Json& pair : pairs->array()) {
      if (pair.array().size() != 2) throw JsonError("a pair has not two values");
      values[pair.array()[0].string("a name")] = decoded(pair.array()[1], tensor);
    }
    return values;
  }
  for (const auto& [name, value] : json.object("the values")) {
    try {
      values[name] = decoded(value, tensor);
    } catch (const JsonError& error) {
      throw JsonError("the value '" + name + "' is not one that C++ has: " + error.what());
    }
  }
  return values;
}

Json json_of(double number) {
  if (std::isfinite(number)) return number;
  return object("!float", std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf");
}

double number_of(const Json& json) {
  if (const Json* const other = content_of(json, "!float")) {
    const std::string& text = other->string("a number");
    if (text == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (text == "inf") return std::numeric_limits<double>::infinity();
    if (text == "-inf") return -std::numeric_limits<double>::infinity();
    throw JsonError("a number is neither nan nor inf");
  }
  if (const Json* const scalar = content_of(json, "!inline")) {
    const at::Tensor tensor = tensor_of_inline(*scalar);
    if (tensor.numel() != 1) throw JsonError("a number is a tensor with several");
    return tensor.item<double>();
  }
  if (json.is_bool()) return json.boolean() ? 1 : 0;
  return json.number();
}

bool is_tensor(const Json& json) {
  return content_of(json, "!tensor") != nullptr || content_of(json, "!inline") != nullptr;
}

at::Tensor tensor_of(const Json& json, const TensorSource& tensor) {
  if (const Json* const key = content_of(json, "!tensor")) return tensor(key->string("a key"));
  if (const Json* const content = content_of(json, "!inline")) return tensor_of_inline(*content);
  throw JsonError("a value is no tensor");
}

Json float_scalar(float value) { return inline_tensor(at::full({}, value, at::kFloat)); }

}  // namespace farandole::checkpoint
