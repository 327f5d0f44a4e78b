// SPDX-License-Identifier: Apache-2.0
#include "wire/frame.h"

#include <gtest/gtest.h>

#include <array>
#include <random>

namespace smddp {
namespace {

using HeaderBytes = std::array<std::byte, kHeaderBytes>;
using ShapeBytes = std::array<std::byte, kShapeBytes>;

HeaderBytes Encoded(const FrameHeader& header) {
  HeaderBytes bytes;
  Encode(header, bytes);
  return bytes;
}

ShapeBytes Encoded(const StreamShape& shape) {
  ShapeBytes bytes;
  Encode(shape, bytes);
  return bytes;
}

FrameHeader Push() {
  return {.kind = FrameKind::kPush,
          .op = ReduceOp::kMin,
          .in = DType::kBF16,
          .out = DType::kF64,
          .payload = 0x01020304 * 2,
          .stream = 0x1112131415161718,
          .epoch = 0x21222324,
          .from = 0x31323334,
          .segment = 0x4142434445464748,
          .value = 0x5152535455565758};
}

TEST(FrameTest, HasTheseBytes) {
  const HeaderBytes bytes = Encoded(Push());
  const uint8_t expected[kHeaderBytes] = {
      8,    2,    9,    11,   8,    6,    4,    2,      // Kind, op, dtypes, payload.
      0x18, 0x17, 0x16, 0x15, 0x14, 0x13, 0x12, 0x11,   // Stream.
      0x24, 0x23, 0x22, 0x21, 0x34, 0x33, 0x32, 0x31,   // Epoch, from.
      0x48, 0x47, 0x46, 0x45, 0x44, 0x43, 0x42, 0x41,   // Segment.
      0x58, 0x57, 0x56, 0x55, 0x54, 0x53, 0x52, 0x51};  // Value.
  for (size_t i = 0; i < kHeaderBytes; ++i) {
    EXPECT_EQ(std::to_integer<uint8_t>(bytes[i]), expected[i]) << i;
  }
}

TEST(FrameTest, EveryKindComesBackAsItWent) {
  for (uint8_t kind = 0; kind < kFrameKinds; ++kind) {
    FrameHeader header = Push();
    header.kind = FrameKind{kind};
    header.payload = kControlBytes;
    const auto decoded = Decode(Encoded(header));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(*decoded, header);
  }
}

TEST(FrameTest, RefusesWhatItDoesNotKnow) {
  const HeaderBytes good = Encoded(Push());
  const std::array<unsigned, 4> first_bad = {kFrameKinds, 3, 14, 14};
  for (size_t field = 0; field < first_bad.size(); ++field) {
    for (unsigned value = first_bad[field]; value < 256; ++value) {
      HeaderBytes bytes = good;
      bytes[field] = static_cast<std::byte>(value);
      const auto decoded = Decode(bytes);
      ASSERT_FALSE(decoded.ok()) << field << " " << value;
      EXPECT_NE(decoded.status().message().find(std::to_string(value)),
                std::string::npos);
    }
  }
}

TEST(FrameTest, RefusesPayloadsThatCannotBe) {
  for (uint8_t kind = 0; kind < kFrameKinds; ++kind) {
    FrameHeader header = Push();
    header.kind = FrameKind{kind};
    header.in = DType::kC128;
    header.payload = kControlBytes + 16;
    EXPECT_EQ(Decode(Encoded(header)).ok(), IsData(header.kind)) << int{kind};
    header.payload = kControlBytes - 1;  // No whole number of elements.
    EXPECT_EQ(Decode(Encoded(header)).ok(), !IsData(header.kind)) << int{kind};
  }
}

// What is taken from random bytes is exactly what those bytes say.
TEST(FrameTest, RandomBytesAreRefusedOrUnderstood) {
  std::mt19937_64 random(7);
  int taken = 0;
  for (int i = 0; i < 200'000; ++i) {
    HeaderBytes bytes;
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
    if (i % 2 == 0) {
      for (size_t j = 0; j < 4; ++j) bytes[j] &= std::byte{0x0f};
      bytes[6] = bytes[7] = std::byte{0};
    }
    const auto decoded = Decode(bytes);
    if (!decoded.ok()) continue;
    ++taken;
    ASSERT_EQ(Encoded(*decoded), bytes);
  }
  EXPECT_GT(taken, 100);
}

TEST(StreamShapeTest, ComesBackAsItWent) {
  const StreamShape shape = {.hosts = 65536,
                             .host = 65535,
                             .reducer = 7,
                             .window = 65536,
                             .slot_bytes = uint64_t{1} << 40,
                             .first = ~uint64_t{0}};
  const auto decoded = DecodeShape(Encoded(shape));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(*decoded, shape);
}

TEST(StreamShapeTest, RefusesWhatIsAbsurd) {
  const StreamShape good = {.hosts = 4, .host = 3, .window = 8, .slot_bytes = 1};
  EXPECT_TRUE(DecodeShape(Encoded(good)).ok());
  const auto refused = [&](auto change) {
    StreamShape shape = good;
    change(shape);
    return !DecodeShape(Encoded(shape)).ok();
  };
  EXPECT_TRUE(refused([](StreamShape& s) { s.host = 4; }));
  EXPECT_TRUE(refused([](StreamShape& s) { s.hosts = s.host = 0; }));
  EXPECT_TRUE(refused([](StreamShape& s) { s.hosts = 65537; }));
  EXPECT_TRUE(refused([](StreamShape& s) { s.window = 0; }));
  EXPECT_TRUE(refused([](StreamShape& s) { s.window = 65537; }));
  const ShapeBytes bytes = Encoded(good);
  EXPECT_FALSE(DecodeShape(std::span(bytes).first(31)).ok());
  EXPECT_FALSE(DecodeShape({}).ok());
}

}  // namespace
}  // namespace smddp
