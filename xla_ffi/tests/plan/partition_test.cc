// SPDX-License-Identifier: Apache-2.0
#include "plan/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace smddp {
namespace {

TEST(PartOfTest, CoversEveryPositionOnceWithEqualParts) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const size_t total = random() % 5000;
    const size_t parts = 1 + random() % 17;
    const size_t align = 1 + random() % 70;
    size_t next = 0;
    size_t smallest = total;
    size_t largest = 0;
    for (size_t i = 0; i < parts; ++i) {
      const Range part = PartOf(total, parts, i, align);
      ASSERT_EQ(part.offset, next);
      ASSERT_TRUE(part.offset % align == 0 || part.empty());
      next = part.end();
      largest = std::max(largest, part.size);
      smallest = std::min(smallest, part.size);
    }
    ASSERT_EQ(next, total);
    // The last part may also miss what `total` lacks to a whole unit.
    ASSERT_LT(largest - smallest, 2 * align);
  }
}

TEST(SegmentTest, CoversEveryPositionOnce) {
  EXPECT_EQ(SegmentCount(0, 8), 0u);
  for (size_t total : {1u, 7u, 8u, 9u, 64u, 65u}) {
    size_t next = 0;
    for (size_t i = 0; i < SegmentCount(total, 8); ++i) {
      const Range segment = SegmentOf(total, 8, i);
      EXPECT_EQ(segment.offset, next);
      EXPECT_GT(segment.size, 0u);
      EXPECT_LE(segment.size, 8u);
      next = segment.end();
    }
    EXPECT_EQ(next, total);
  }
}

TEST(SegmentTest, CountsBeyondTwoToThe31) {
  const size_t total = (size_t{1} << 32) + 3;
  const size_t count = SegmentCount(total, 1 << 20);
  EXPECT_EQ(count, 4097u);
  EXPECT_EQ(SegmentOf(total, 1 << 20, count - 1), (Range{size_t{1} << 32, 3}));
}

std::vector<Piece> PiecesOf(const FusedSpace& space, Range range) {
  std::vector<Piece> pieces;
  space.ForEachPiece(range, [&](const Piece& piece) { pieces.push_back(piece); });
  return pieces;
}

TEST(FusedSpaceTest, CutsARangeAtTensorBorders) {
  const FusedSpace space({3, 0, 5, 1});
  EXPECT_EQ(space.total(), 9u);
  EXPECT_EQ(space.tensors(), 4u);
  EXPECT_EQ(PiecesOf(space, {0, 9}),
            (std::vector<Piece>{{0, {0, 3}, 0}, {2, {0, 5}, 3}, {3, {0, 1}, 8}}));
  EXPECT_EQ(PiecesOf(space, {2, 3}),
            (std::vector<Piece>{{0, {2, 1}, 0}, {2, {0, 2}, 1}}));
  EXPECT_EQ(PiecesOf(space, {3, 5}), (std::vector<Piece>{{2, {0, 5}, 0}}));
  EXPECT_TRUE(PiecesOf(space, {4, 0}).empty());
}

TEST(FusedSpaceTest, RandomRangesAddUp) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<size_t> counts(random() % 12);
    for (size_t& count : counts) count = random() % 9;
    const FusedSpace space(counts);
    if (space.total() == 0) {
      EXPECT_TRUE(PiecesOf(space, {0, 0}).empty());
      continue;
    }
    const size_t offset = random() % space.total();
    const Range range{offset, random() % (space.total() - offset + 1)};
    size_t covered = 0;
    for (const Piece& piece : PiecesOf(space, range)) {
      ASSERT_EQ(piece.in_range, covered);
      ASSERT_LE(piece.in_tensor.end(), counts[piece.tensor]);
      covered += piece.in_tensor.size;
    }
    ASSERT_EQ(covered, range.size);
  }
}

}  // namespace
}  // namespace smddp
