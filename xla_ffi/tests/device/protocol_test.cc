// SPDX-License-Identifier: Apache-2.0
// The protocol between ranks: calls one after the other, and calls that cannot end.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <string>
#include <thread>

#include "tests/device/ranks.h"

namespace smddp::device::testing {
namespace {

using smddp::testing::Expected;
using smddp::testing::Get;
using smddp::testing::Put;

constexpr Kind kFloats{DType::kF32, DType::kF32};

HostFunction SumFloats() {
  return FindHostReduce(ReduceOp::kSum, DType::kF32, DType::kF32);
}

// What element e of `rank`'s contribution to a call is: none is another's.
float Contribution(uint64_t call, uint32_t rank, size_t e) {
  return static_cast<float>((call * 31 + rank * 7 + e) % 1021);
}

Bytes Contributions(uint64_t call, uint32_t rank, size_t count) {
  Bytes bytes(count * sizeof(float));
  for (size_t e = 0; e < count; ++e) Put(bytes, e, Contribution(call, rank, e));
  return bytes;
}

// A call of a sequence, on all ranks.
struct Step {
  Algorithm algorithm;
  size_t count;
  std::vector<UserArray> to;

  void Check(uint64_t number, uint32_t ranks, uint32_t rank) {
    const Bytes got = to[rank].Value();
    for (size_t e = 0; e < count; ++e) {
      float sum = 0;
      for (uint32_t r = 0; r < ranks; ++r) sum += Contribution(number, r, e);
      ASSERT_EQ(Get<float>(got, e), sum)
          << "call " << number << ", rank " << rank << ", element " << e;
    }
    EXPECT_TRUE(to[rank].GuardsHold());
  }
};

// Staging is so small that all calls use the same bytes of it; sizes, algorithms and
// numbers of blocks change from call to call, and nobody waits in between.
void RunManyCalls(uint32_t ranks, uint32_t threads_in_block, size_t calls) {
  std::mt19937_64 random(ranks);
  Ranks group(ranks, /*half_bytes=*/8192);
  std::vector<Step> steps(calls);
  std::vector<std::unique_ptr<UserArray>> inputs;
  for (size_t i = 0; i < calls; ++i) {
    Step& step = steps[i];
    step.algorithm = random() % 2 == 0 ? Algorithm::kOneShot : Algorithm::kTwoShot;
    step.count = 1 + random() % 200;
    const uint32_t blocks = 1 + random() % 2;
    for (uint32_t r = 0; r < ranks; ++r) step.to.emplace_back(step.count * sizeof(float));
    for (uint32_t r = 0; r < ranks; ++r) {
      inputs.push_back(std::make_unique<UserArray>(Contributions(i + 1, r, step.count)));
      const Tensor tensor{inputs.back()->data(), step.to[r].data(), step.count};
      group.Enqueue(
          r, SumFloats(),
          MakeAllReduce(group.group(r), i + 1, step.algorithm, kFloats, {&tensor, 1}),
          blocks);
    }
  }
  group.Run(threads_in_block);
  for (size_t i = 0; i < calls; ++i) {
    for (uint32_t r = 0; r < ranks; ++r) steps[i].Check(i + 1, ranks, r);
  }
}

TEST(DeviceProtocol, ManyCallsOfTwoRanks) { RunManyCalls(2, 2, 300); }
TEST(DeviceProtocol, ManyCallsOfThreeRanks) { RunManyCalls(3, 2, 200); }
TEST(DeviceProtocol, ManyCallsOfFourRanks) { RunManyCalls(4, 2, 150); }
TEST(DeviceProtocol, ManyCallsOfEightRanks) { RunManyCalls(8, 1, 100); }
// More ranks than a block has threads, and fewer.
TEST(DeviceProtocol, ManyCallsWithFiveThreadsInABlock) { RunManyCalls(3, 5, 50); }

// A group of ranks in which one call fails, with a tensor of its own for each rank.
class DeviceAbort : public ::testing::Test {
 protected:
  static constexpr size_t kCount = 100;
  static constexpr uint32_t kBlocks = 2;

  DeviceAbort() : arrays_(3) {
    for (uint32_t r = 0; r < 3; ++r) {
      arrays_[r].Add(Contributions(1, r, kCount), kCount * sizeof(float), kCount, 0);
    }
  }

  void Enqueue(uint32_t rank, uint64_t number, Algorithm algorithm) {
    group_.Enqueue(rank, SumFloats(),
                   MakeAllReduce(group_.group(rank), number, algorithm, kFloats,
                                 arrays_[rank].tensors),
                   kBlocks);
  }

  // Waits until all blocks of `rank` have come to a meeting, as `other` sees it.
  void AwaitMeeting(uint32_t rank, uint32_t other, uint64_t meeting) {
    for (uint32_t block = 0; block < kBlocks; ++block) {
      uint64_t* const met = &group_.flags(other).met[block][rank];
      while (Meeting::Order(HostExecution::LoadAcquire(met)) < meeting) {
        std::this_thread::yield();
      }
    }
  }

  void ExpectGaveUp(uint32_t rank, const GaveUp& expected) {
    const GaveUp gave_up = group_.WhatGaveUp(rank);
    EXPECT_EQ(gave_up.call, expected.call) << "rank " << rank;
    EXPECT_EQ(gave_up.round, expected.round) << "rank " << rank;
    EXPECT_EQ(gave_up.rank, expected.rank) << "rank " << rank;
    EXPECT_EQ(gave_up.disagrees, expected.disagrees) << "rank " << rank;
  }

  // Whether `rank`'s result is nothing but 0xFF, and nothing around it was written.
  bool Poisoned(uint32_t rank) {
    const Bytes value = arrays_[rank].to[0].Value();
    return value == Bytes(value.size(), 0xff) && arrays_[rank].to[0].GuardsHold();
  }

  Ranks group_{3};
  std::vector<Arrays> arrays_;
};

TEST_F(DeviceAbort, EndsTheWaitForARankThatNeverComes) {
  for (uint32_t r = 0; r < 3; ++r) Enqueue(r, 1, Algorithm::kOneShot);
  for (uint32_t r = 0; r < 2; ++r) Enqueue(r, 2, Algorithm::kTwoShot);
  {
    std::vector<std::unique_ptr<Stream>> running;
    for (uint32_t r = 0; r < 3; ++r) running.push_back(group_.Start(r));
    for (uint32_t r = 0; r < 2; ++r) AwaitMeeting(r, 1 - r, 2 * 2);
    for (uint32_t r = 0; r < 2; ++r) group_.Abort(r);
  }
  for (uint32_t r = 0; r < 2; ++r) ExpectGaveUp(r, {2, 0, 2, false});
  EXPECT_EQ(group_.watch(2).gave_up, 0u);
}

TEST_F(DeviceAbort, EndsAWaitInTheSecondRound) {
  for (uint32_t r = 0; r < 2; ++r) Enqueue(r, 1, Algorithm::kTwoShot);
  // Rank 2 dies behind its first round: that is all that a reduce-scatter has.
  Bytes part(kCount * sizeof(float));
  group_.Enqueue(
      2, SumFloats(),
      MakeReduceScatter(group_.group(2), 1, kFloats, arrays_[2].tensors, part.data()),
      kBlocks);
  {
    std::vector<std::unique_ptr<Stream>> running;
    for (uint32_t r = 0; r < 3; ++r) running.push_back(group_.Start(r));
    for (uint32_t r = 0; r < 2; ++r) AwaitMeeting(r, 1 - r, 2 * 1 + 1);
    for (uint32_t r = 0; r < 2; ++r) group_.Abort(r);
  }
  for (uint32_t r = 0; r < 2; ++r) {
    ExpectGaveUp(r, {1, 1, 2, false});
    EXPECT_TRUE(Poisoned(r));
  }
}

// Rank 0 gives call 1 up and goes on to call 2, as its stream does. Rank 1, which still
// waits in call 1, must not take rank 0's next meeting for the one of call 1.
TEST_F(DeviceAbort, WhoGaveUpComesToNoLaterMeeting) {
  Enqueue(0, 1, Algorithm::kTwoShot);
  Enqueue(0, 2, Algorithm::kTwoShot);
  Enqueue(1, 1, Algorithm::kTwoShot);
  {
    auto waits = group_.Start(1);
    group_.Abort(0);
    {
      auto gives_up = group_.Start(0);
    }
    ExpectGaveUp(0, {1, 0, 2, false});
    for (uint64_t& met : group_.flags(1).met[0]) {
      EXPECT_LE(Meeting::Order(HostExecution::LoadAcquire(&met)), 2u * 1);
    }
    EXPECT_EQ(HostExecution::LoadAcquire(&group_.watch(1).gave_up), 0u);
    group_.Abort(1);
  }
  // Whom it missed is a matter of timing: the abort may come before it has looked.
  const GaveUp gave_up = GaveUp::Unpack(group_.watch(1).gave_up);
  EXPECT_EQ(gave_up.call, 1u);
  EXPECT_EQ(gave_up.round, 0u);
  EXPECT_TRUE(Poisoned(0));
  EXPECT_TRUE(Poisoned(1));
}

// Its peers may still add up what they got before: rank 0, which gave up call 1, must not
// write to the same half of their staging for call 3.
TEST_F(DeviceAbort, WhoGaveUpWritesNothingToItsPeers) {
  Enqueue(0, 1, Algorithm::kTwoShot);
  {
    auto gives_up = group_.Start(0);
    group_.Abort(0);
  }
  const char* const theirs = group_.group(0).staging[1];
  const std::string before(theirs, 2 * group_.group(0).half_bytes);
  const Bytes other = Contributions(3, 0, kCount);
  std::copy(other.begin(), other.end(), arrays_[0].from[0].data());
  Enqueue(0, 3, Algorithm::kTwoShot);
  {
    auto later = group_.Start(0);
  }
  EXPECT_EQ(std::string(theirs, before.size()), before);
  EXPECT_TRUE(Poisoned(0));
}

// Rank 2 calls something else. All see that by its flag, and nobody waits for the host.
TEST_F(DeviceAbort, RanksThatDisagreeGiveUp) {
  for (uint32_t r = 0; r < 3; ++r) {
    auto call = MakeAllReduce(group_.group(r), 1, Algorithm::kOneShot, kFloats,
                              arrays_[r].tensors);
    ASSERT_TRUE(call.ok());
    call->tag = r == 2 ? 0xffffff : 7;
    group_.Enqueue(r, SumFloats(), call, 1);
  }
  group_.Run();
  for (uint32_t r = 0; r < 3; ++r) {
    const GaveUp gave_up = group_.WhatGaveUp(r);
    EXPECT_EQ(gave_up.call, 1u);
    EXPECT_TRUE(gave_up.disagrees);
    EXPECT_TRUE(r == 2 ? gave_up.rank < 2 : gave_up.rank == 2) << gave_up.rank;
    EXPECT_TRUE(Poisoned(r)) << "rank " << r;
  }
}

// An abort ends waits; it does not spoil a call that needs to wait for nobody.
TEST_F(DeviceAbort, DoesNothingToACallWhereAllCame) {
  for (uint32_t r = 0; r < 3; ++r) Enqueue(r, 1, Algorithm::kOneShot);
  {
    auto first = group_.Start(0);
    {
      auto second = group_.Start(1);
      group_.Start(2);
    }
  }
  for (uint32_t r = 0; r < 3; ++r) group_.Abort(r);
  for (uint32_t r = 0; r < 3; ++r) EXPECT_FALSE(Poisoned(r));
  for (uint32_t r = 0; r < 3; ++r) EXPECT_EQ(group_.watch(r).gave_up, 0u);
}

TEST(DeviceWatch, SaysWhichMeetingWasGivenUp) {
  const GaveUp gave_up = GaveUp::Unpack(GaveUp{uint64_t{1} << 38, 1, 7, true}.Pack());
  EXPECT_EQ(gave_up.call, uint64_t{1} << 38);
  EXPECT_EQ(gave_up.round, 1u);
  EXPECT_EQ(gave_up.rank, 7u);
  EXPECT_TRUE(gave_up.disagrees);
}

}  // namespace
}  // namespace smddp::device::testing
