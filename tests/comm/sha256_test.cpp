// SPDX-License-Identifier: Apache-2.0
#include "comm/sha256.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace farandole::comm {
namespace {

std::string hash_of(const std::string& text, size_t step = 1000) {
  Sha256 hash;
  for (size_t i = 0; i < text.size(); i += step) {
    hash.update(text.data() + i, std::min(step, text.size() - i));
  }
  return hex_of(hash.finish());
}

/// The examples of FIPS 180-4 and its test vectors.
TEST(Sha256, HasThePublishedValues) {
  EXPECT_EQ(hash_of(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash_of("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash_of("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash_of(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, DoesNotDependOnHowTheTextIsCut) {
  for (size_t size = 0; size < 150; ++size) {
    const std::string text(size, 'x');
    for (const size_t step : {size_t{1}, size_t{7}, size_t{64}}) {
      EXPECT_EQ(hash_of(text, step), hash_of(text)) << size << " " << step;
    }
  }
}

/// RFC 4231: test cases 1, 2, 3 and 6.
TEST(Sha256, CodesHaveThePublishedValues) {
  EXPECT_EQ(hex_of(hmac_sha256(std::string(20, '\x0b'), "Hi There")),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(hex_of(hmac_sha256("Jefe", "what do ya want for nothing?")),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(hex_of(hmac_sha256(std::string(20, '\xaa'), std::string(50, '\xdd'))),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(hex_of(hmac_sha256(std::string(131, '\xaa'),
                               "Test Using Larger Than Block-Size Key - Hash Key First")),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
}

TEST(Sha256, CodesOfOtherPartsDiffer) {
  const Digest code = code_of("secret", "purpose", {"ab", "c"});
  EXPECT_TRUE(equal_in_constant_time(code, code_of("secret", "purpose", {"ab", "c"})));
  EXPECT_FALSE(equal_in_constant_time(code, code_of("secret", "purpose", {"a", "bc"})));
  EXPECT_FALSE(equal_in_constant_time(code, code_of("secret", "purpose", {"ab", "c", ""})));
  EXPECT_FALSE(equal_in_constant_time(code, code_of("secret", "other", {"ab", "c"})));
  EXPECT_FALSE(equal_in_constant_time(code, code_of("other", "purpose", {"ab", "c"})));
  // That of job_secret.code() of Python, which tests/python/test_job_secret.py expects as well.
  EXPECT_EQ(hex_of(code), "4a0ce04375c9fb38eff55775a8365526828787d39a25dec5ae9cb67a874ef864");
}

}  // namespace
}  // namespace farandole::comm
