// SPDX-License-Identifier: Apache-2.0
#include "base/hmac.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace smddp {
namespace {

std::span<const std::byte> Bytes(const std::string& text) {
  return std::as_bytes(std::span(text));
}

std::string Hex(const Digest& digest) {
  std::string hex;
  for (std::byte byte : digest) {
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", std::to_integer<unsigned>(byte));
    hex += digits;
  }
  return hex;
}

std::string Sha(const std::string& text) { return Hex(Sha256(Bytes(text))); }

std::string Mac(const std::string& key, const std::string& text) {
  return Hex(HmacSha256(Bytes(key), Bytes(text)));
}

// The examples that NIST publishes for FIPS 180-4.
TEST(Sha256Test, GivesThePublishedDigests) {
  EXPECT_EQ(Sha(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha("abc"),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Around 56 bytes the padding starts another block.
TEST(Sha256Test, PadsAtBlockBorders) {
  EXPECT_EQ(Sha(std::string(55, 'a')),
            "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318");
  EXPECT_EQ(Sha(std::string(56, 'a')),
            "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a");
  EXPECT_EQ(Sha(std::string(64, 'a')),
            "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb");
}

// Cases 1, 2, 3, 6 and 7 of RFC 4231.
TEST(HmacTest, GivesThePublishedCodes) {
  EXPECT_EQ(Mac(std::string(20, '\x0b'), "Hi There"),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
  EXPECT_EQ(Mac("Jefe", "what do ya want for nothing?"),
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
  EXPECT_EQ(Mac(std::string(20, '\xaa'), std::string(50, '\xdd')),
            "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
  EXPECT_EQ(Mac(std::string(131, '\xaa'),
                "Test Using Larger Than Block-Size Key - Hash Key First"),
            "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
  EXPECT_EQ(
      Mac(std::string(131, '\xaa'),
          "This is a test using a larger than block-size key and a larger than "
          "block-size data. The key needs to be hashed before being used by the HMAC "
          "algorithm."),
      "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

TEST(HmacTest, ComparesEveryByte) {
  const Digest digest = Sha256({});
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    EXPECT_TRUE(EqualInConstantTime(digest, other));
    other[i] ^= std::byte{0x40};
    EXPECT_FALSE(EqualInConstantTime(digest, other)) << i;
  }
  EXPECT_FALSE(EqualInConstantTime(digest, std::span(digest).first(31)));
}

}  // namespace
}  // namespace smddp
