// SPDX-License-Identifier: Apache-2.0
#include "device/make_call.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

namespace smddp::device {
namespace {

Group GroupOf(uint32_t ranks, size_t half_bytes) {
  Group group;
  group.ranks = ranks;
  group.half_bytes = half_bytes;
  return group;
}

// `count` elements at an address that nobody reads.
Tensor TensorOf(size_t count) {
  return {reinterpret_cast<void*>(4096), reinterpret_cast<void*>(8192), count};
}

TEST(MakeCallTest, ArraysStartOnUnitsAndEndWithinThem) {
  const Tensor tensors[] = {TensorOf(5), TensorOf(0), TensorOf(8)};
  auto call = MakeAllReduce(GroupOf(2, 4096), 1, Algorithm::kTwoShot, {}, tensors);
  ASSERT_TRUE(call.ok()) << call.status().message();
  ASSERT_EQ(call->from.count, 2u);
  const Span& first = call->from.spans[0];
  EXPECT_EQ(first.first, 0u);
  EXPECT_EQ(first.whole_end, 1u);
  EXPECT_EQ(first.end, 2u);
  EXPECT_EQ(first.last_bytes, sizeof(float));
  const Span& second = call->from.spans[1];
  EXPECT_EQ(second.first, 2u);
  EXPECT_EQ(second.whole_end, 4u);
  EXPECT_EQ(second.end, 4u);
  EXPECT_EQ(second.last_bytes, 16u);
  EXPECT_EQ(call->units(), 4u);
  EXPECT_EQ(call->borders[1], 2u);
}

TEST(MakeCallTest, ACastsUnitsAreWholeVectorsOnBothSides) {
  const Tensor tensor = TensorOf(9);
  auto call = MakeAllReduce(GroupOf(2, 4096), 1, Algorithm::kOneShot,
                            {DType::kF32, DType::kBF16}, {&tensor, 1});
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->units(), 2u);
  EXPECT_EQ(call->slot_bytes, 2u * 32);
  EXPECT_EQ(call->from.spans[0].last_bytes, sizeof(float));
  EXPECT_EQ(call->to.spans[0].last_bytes, 2u);
}

TEST(MakeCallTest, ComplexElementsAreTwoNumbers) {
  const Tensor tensor = TensorOf(3);
  auto call = MakeAllReduce(GroupOf(2, 4096), 1, Algorithm::kOneShot,
                            {DType::kC64, DType::kC64}, {&tensor, 1});
  ASSERT_TRUE(call.ok());
  EXPECT_EQ(call->units(), 2u);
  EXPECT_EQ(call->from.spans[0].last_bytes, 8u);
  EXPECT_EQ(PartElements({DType::kC128, DType::kC128}, {&tensor, 1}, 2, 0), 2u);
}

TEST(MakeCallTest, CallsAlternateBetweenTheHalves) {
  Group group = GroupOf(2, 4096);
  char staging[2];
  group.staging[0] = staging;
  const Tensor tensor = TensorOf(4);
  for (uint64_t number : {1, 2, 3}) {
    auto call = MakeAllReduce(group, number, Algorithm::kOneShot, {}, {&tensor, 1});
    ASSERT_TRUE(call.ok());
    EXPECT_EQ(call->staging[0], staging + number % 2 * 4096);
  }
}

TEST(MakeCallTest, PartsCoverAllUnitsOnce) {
  for (size_t count : {1, 4, 31, 1000}) {
    const Tensor tensors[] = {TensorOf(count), TensorOf(3)};
    for (uint32_t ranks = 1; ranks <= kMaxRanks; ++ranks) {
      size_t elements = 0;
      for (uint32_t r = 0; r < ranks; ++r) {
        elements += PartElements({}, tensors, ranks, r);
      }
      EXPECT_EQ(elements, (count + 3) / 4 * 4 + 4);
    }
  }
}

TEST(MakeCallTest, BlocksFollowTheSizeUpToTheBound) {
  Group group = GroupOf(2, size_t{64} << 20);
  group.max_blocks = 32;
  const auto blocks = [&](size_t count) {
    const Tensor tensor = TensorOf(count);
    return MakeAllReduce(group, 1, Algorithm::kTwoShot, {}, {&tensor, 1})->blocks;
  };
  EXPECT_EQ(blocks(1), 1u);
  EXPECT_EQ(blocks(2 * 4 * kThreads), 1u);
  EXPECT_EQ(blocks(2 * 4 * kThreads + 1), 2u);
  EXPECT_EQ(blocks(size_t{4} << 20), 32u);
}

// Every element of every tensor is in one call, in order, and each call can be made.
void ExpectCutWell(const Group& group, Algorithm algorithm, const Kind& kind,
                   const std::vector<Tensor>& tensors) {
  size_t tensor = 0;
  size_t done = 0;
  for (const auto& call : CutIntoCalls(group, algorithm, kind, tensors)) {
    ASSERT_FALSE(call.empty());
    auto made = algorithm == Algorithm::kReduceScatter
                    ? MakeReduceScatter(group, 1, kind, call, nullptr)
                : algorithm == Algorithm::kAllGather
                    ? MakeAllGather(group, 1, kind, nullptr, call)
                    : MakeAllReduce(group, 1, algorithm, kind, call);
    EXPECT_TRUE(made.ok()) << made.status().message();
    for (const Tensor& piece : call) {
      while (tensors[tensor].count == done) {
        ++tensor;
        done = 0;
      }
      const size_t in = done * SizeOf(kind.in);
      const size_t out = done * SizeOf(kind.out);
      EXPECT_EQ(piece.from, static_cast<const char*>(tensors[tensor].from) + in);
      EXPECT_EQ(piece.to, static_cast<char*>(tensors[tensor].to) + out);
      EXPECT_EQ(in % 16, 0u);
      EXPECT_EQ(out % 16, 0u);
      done += piece.count;
    }
  }
  size_t left = tensors[tensor].count - done;
  while (++tensor < tensors.size()) left += tensors[tensor].count;
  EXPECT_EQ(left, 0u);
}

TEST(CutIntoCallsTest, EveryElementIsInOneCallThatFits) {
  std::vector<Tensor> many(200, TensorOf(3));
  many.push_back(TensorOf(0));
  many.push_back(TensorOf(100001));
  many.push_back(TensorOf(1));
  for (Algorithm algorithm : {Algorithm::kOneShot, Algorithm::kTwoShot,
                              Algorithm::kReduceScatter, Algorithm::kAllGather}) {
    for (Kind kind : {Kind{}, Kind{DType::kBF16, DType::kF32},
                      Kind{DType::kF32, DType::kF16}, Kind{DType::kC128, DType::kC128}}) {
      for (uint32_t ranks : {2, 3, 8}) {
        ExpectCutWell(GroupOf(ranks, 8192), algorithm, kind, many);
      }
    }
  }
}

TEST(MakeCallTest, WhatDoesNotFitIsRefusedInWords) {
  const Tensor large = TensorOf(4096);
  auto call = MakeAllReduce(GroupOf(2, 4096), 1, Algorithm::kOneShot, {}, {&large, 1});
  ASSERT_FALSE(call.ok());
  EXPECT_EQ(call.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(call.status().message().find("32768 bytes of staging"), std::string::npos);
  EXPECT_NE(call.status().message().find("CutIntoCalls"), std::string::npos);

  const std::vector<Tensor> many(kMaxSpans + 1, TensorOf(1));
  EXPECT_FALSE(MakeAllReduce(GroupOf(2, 1 << 20), 1, Algorithm::kOneShot, {}, many).ok());
  const Tensor small = TensorOf(1);
  EXPECT_FALSE(
      MakeAllReduce(GroupOf(9, 4096), 1, Algorithm::kOneShot, {}, {&small, 1}).ok());
}

TEST(ChooseAllReduceTest, SmallCallsTakeOneRound) {
  EXPECT_EQ(ChooseAllReduce(kOneShotBytes), Algorithm::kOneShot);
  EXPECT_EQ(ChooseAllReduce(kOneShotBytes + 1), Algorithm::kTwoShot);
  EXPECT_EQ(ChooseAllReduce(2, 1), Algorithm::kTwoShot);
}

}  // namespace
}  // namespace smddp::device
