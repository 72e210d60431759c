// SPDX-License-Identifier: Apache-2.0
// JSON, headers of safetensors files, and checksums.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "checkpoint/format/checksum.h"
#include "checkpoint/format/json.h"
#include "checkpoint/format/safetensors.h"

namespace farandole::checkpoint {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Json, IsReadAndWritten) {
  const std::string texts[] = {
      "null",
      "true",
      "[]",
      "{}",
      "[1,-9223372036854775808,9223372036854775807]",
      "[0.1,1e+23,-2.5e-308,3.0]",
      R"({"a":{"b":[false,null,"c"]},"d":""})",
      R"(["\u0001\"\\/","äöü€𝄞"])",
  };
  for (const std::string& text : texts) EXPECT_EQ(Json::parse(text).dump(), text);
  EXPECT_EQ(Json::parse(" [ 1 , {\"a\" : 2 }\n]\t").dump(), R"([1,{"a":2}])");
  EXPECT_EQ(Json::parse(R"("\u00e4\u20ac\ud834\udd1e\n")").string(), "ä€𝄞\n");
}

TEST(Json, KeepsNumbersExact) {
  EXPECT_EQ(Json::parse("9007199254740993").integer(), 9007199254740993);
  EXPECT_FALSE(Json::parse("1.0").is_integer());
  EXPECT_EQ(Json::parse("1.0").number(), 1);
  EXPECT_EQ(Json::parse("18446744073709551616").number(), 0x1p64);
  for (const double value : {0.1, 1.0 / 3, 5e-324, 1.7976931348623157e308}) {
    EXPECT_EQ(Json::parse(Json(value).dump()).number(), value);
  }
  EXPECT_THROW(Json(std::numeric_limits<double>::infinity()).dump(), JsonError);
}

TEST(Json, RefusesWhatIsNone) {
  for (const char* text :
       {"",        " ",           "{",           "[1,]",      "[1 2]",
        "{\"a\"}", "{\"a\":1,}",  "{a:1}",       "\"a",       "\"\\x\"",
        "\"\n\"",  "nul",         "truely",      "01",        "1.",
        "-",       "+1",          ".5",          "1e",        "NaN",
        "1 2",     "\"\\ud834\"", "\"\\udd1e\"", "\"\\u12\"", "{\"a\":1,\"a\":2}",
        "1e999",   "[[]"}) {
    EXPECT_THROW(Json::parse(text), JsonError) << text;
  }
  EXPECT_THROW(Json::parse(std::string(100'000, '[')), JsonError);
  EXPECT_THAT([] { Json::parse("[1, 2"); }, ThrowsMessage<JsonError>(HasSubstr("at byte 5")));
  EXPECT_THAT([] { (void)Json::parse("[1]").at("b"); },
              ThrowsMessage<JsonError>(HasSubstr("is no object")));
  EXPECT_THAT([] { (void)Json::parse("{}").at("b"); },
              ThrowsMessage<JsonError>(HasSubstr("'b' is missing")));
}

SafetensorsHeader header() {
  SafetensorsHeader made;
  made.tensors = {{"a", "F32", {2, 3}, 0, 24},
                  {"b \"quoted\"", "BF16", {}, 24, 26},
                  {"empty", "I64", {0, 5}, 26, 26},
                  {"c", "U8", {7}, 26, 33}};
  made.metadata = {{"format", "pt"}, {"own", R"({"x":1})"}};
  return made;
}

SafetensorsHeader parsed(const std::string& file) {
  const uint64_t length = SafetensorsHeader::length_of(file.substr(0, 8), file.size());
  return SafetensorsHeader::parse(std::string_view(file).substr(8, length),
                                  file.size() - 8 - length);
}

TEST(Safetensors, HeadersAreReadAsWritten) {
  const std::string bytes = header().compose();
  EXPECT_EQ(bytes.size() % 64, 0);
  const SafetensorsHeader again = parsed(bytes + std::string(33, 'x'));
  ASSERT_EQ(again.tensors.size(), 4);
  EXPECT_EQ(again.metadata, header().metadata);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(again.tensors[i].name, header().tensors[i].name);
    EXPECT_EQ(again.tensors[i].shape, header().tensors[i].shape);
    EXPECT_EQ(again.tensors[i].begin, header().tensors[i].begin);
  }
}

std::string why_not(const std::string& json, uint64_t data_bytes) {
  try {
    SafetensorsHeader::parse(json, data_bytes);
  } catch (const FormatError& error) {
    return error.what();
  }
  return "it was taken";
}

TEST(Safetensors, DamagedHeadersAreRefused) {
  const auto of = [](const std::string& shape, const std::string& offsets) {
    return R"({"a":{"dtype":"F32","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}}";
  };
  EXPECT_EQ(why_not(of("[2]", "[0,8]"), 8), "it was taken");
  EXPECT_THAT(why_not(of("[2]", "[0,8]"), 9), HasSubstr("have 8 bytes, and the file has 9"));
  EXPECT_THAT(why_not(of("[2]", "[4,12]"), 12), HasSubstr("do not follow"));
  EXPECT_THAT(why_not(of("[2]", "[8,0]"), 8), HasSubstr("do not follow"));
  EXPECT_THAT(why_not(of("[3]", "[0,8]"), 8), HasSubstr("shape and dtype make 12"));
  EXPECT_THAT(why_not(of("[-1]", "[0,8]"), 8), HasSubstr("negative"));
  EXPECT_THAT(why_not(of("[2]", "[-8,0]"), 8), HasSubstr("negative"));
  EXPECT_THAT(why_not(of("[2]", "[0]"), 8), HasSubstr("two offsets"));
  EXPECT_THAT(why_not(of("[4611686018427387904,16]", "[0,0]"), 0), HasSubstr("too large"));
  EXPECT_THAT(why_not(R"({"a":{"dtype":"F32"}})", 8), HasSubstr("'shape' is missing"));
  EXPECT_THAT(why_not("[]", 0), HasSubstr("damaged"));
  EXPECT_THROW(SafetensorsHeader::length_of("short", 5), FormatError);
  EXPECT_THROW(SafetensorsHeader::length_of(std::string(8, '\x7f'), 1 << 20), FormatError);
  EXPECT_THROW(SafetensorsHeader::length_of(std::string("\x09\0\0\0\0\0\0\0", 8), 16), FormatError);
}

/// Files from which the fuzzer begins: of ours, of the official library, and odd but valid ones.
std::vector<std::string> corpus() {
  const auto file = [](const std::string& json, size_t data_bytes) {
    std::string length(8, '\0');
    for (size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(json.size() >> (8 * i) & 0xff);
    return length + json + std::string(data_bytes, 'x');
  };
  return {
      header().compose() + std::string(33, 'x'),
      file("{}", 0),
      file(R"({"__metadata__":{}})", 0),
      file(R"({"__metadata__":{"format":"pt"},"w":{"dtype":"F32","shape":[2,2],)"
           R"("data_offsets":[0,16]}}   )",
           16),
      file(R"({"b":{"dtype":"I64","shape":[0],"data_offsets":[4,4]},)"
           R"("a":{"dtype":"BF16","shape":[1,1,2,1],"data_offsets":[0,4]}})",
           4),
      file(R"({"of a newer format":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", 2),
      file(R"({"\u00e4\ud834\udd1e\\":{"dtype":"BOOL","shape":[],"data_offsets":[0,1]}})", 1),
  };
}

TEST(Safetensors, EachFileOfTheCorpusIsRead) {
  for (const std::string& file : corpus()) EXPECT_NO_THROW(parsed(file)) << file;
}

/// FARANDOLE_FUZZ_S: for how long; by default a moment.
TEST(Safetensors, NoBytesBreakTheReader) {
  const char* const seconds = std::getenv("FARANDOLE_FUZZ_S");
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::seconds(seconds != nullptr ? std::atoi(seconds) : 2);
  std::mt19937 random(7);
  const std::vector<std::string> whole = corpus();
  const std::string pieces[] = {"[", "]",    "{",   "}",    "\"", ",",  ":",      "-1",     "1e400",
                                "9", "null", "\\u", "\xff", " ",  "[[", "\"a\":", "F8_E4M3"};
  uint64_t taken = 0;
  uint64_t refused = 0;
  while (std::chrono::steady_clock::now() < deadline) {
    std::string file = whole[random() % whole.size()];
    for (int change = 1 + static_cast<int>(random() % 4); change > 0 && !file.empty(); --change) {
      const size_t at = random() % file.size();
      switch (random() % 5) {
        case 0:
          file[at] = static_cast<char>(random());
          break;
        case 1:
          file.erase(at, random() % 9);
          break;
        case 2:
          file.insert(at, pieces[random() % std::size(pieces)]);
          break;
        case 3:
          file.resize(at);
          break;
        default:
          file[at % 8] = static_cast<char>(random());
      }
    }
    try {
      const SafetensorsHeader own = parsed(file);
      ++taken;
      for (const StoredTensor& tensor : own.tensors) ASSERT_LE(tensor.end, file.size());
    } catch (const FormatError&) {
      ++refused;
    }
  }
  EXPECT_GT(taken, 0);
  EXPECT_GT(refused, taken);
}

TEST(Crc32c, IsThatOfTheStandard) {
  EXPECT_EQ(crc32c("123456789", 9), 0xe3069283);  // RFC 3720
  EXPECT_EQ(crc32c(std::string(32, '\0').data(), 32), 0x8a9136aa);
  EXPECT_EQ(crc32c(nullptr, 0), 0);
}

/// Bit by bit, as the polynomial is defined.
uint32_t slow_crc32c(const std::string& data) {
  uint32_t crc = ~uint32_t{0};
  for (const char each : data) {
    crc ^= static_cast<unsigned char>(each);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78U : 0);
  }
  return ~crc;
}

TEST(Crc32c, HasTheBitsOfItsDefinitionAtAllLengths) {
  std::mt19937 random(5);
  std::string data;
  for (const size_t length : {1, 7, 8, 9, 2047, 2048, 6143, 6144, 6145, 12'288, 20'001}) {
    while (data.size() < length) data.push_back(static_cast<char>(random()));
    EXPECT_EQ(crc32c(data.data(), data.size()), slow_crc32c(data)) << length;
  }
}

TEST(Crc32c, GoesOnFromWhatCameBefore) {
  std::mt19937 random(3);
  std::string data(100'003, '\0');
  for (char& each : data) each = static_cast<char>(random());
  const uint32_t whole = crc32c(data.data(), data.size());
  for (const size_t first : {0, 1, 7, 8, 4096, 100'003}) {
    const uint32_t before = crc32c(data.data(), first);
    EXPECT_EQ(crc32c(data.data() + first, data.size() - first, before), whole);
  }
  data[50'000] = static_cast<char>(data[50'000] ^ 1);
  EXPECT_NE(crc32c(data.data(), data.size()), whole);
}

}  // namespace
}  // namespace farandole::checkpoint
