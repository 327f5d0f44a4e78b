// SPDX-License-Identifier: Apache-2.0
// The process-local stage: what the devices contribute to a range, and what they get.
#include "collective/local_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "collective/call.h"
#include "comm/group.h"

namespace smddp {
namespace {

constexpr size_t kBlock = 5;  // Elements.

// The members of a group in an order in which processes take turns.
std::shared_ptr<const Group> MakeGroup(int my_process) {
  return std::make_shared<const Group>(
      std::vector<Member>{{2048, 1}, {0, 0}, {2049, 1}, {1, 0}}, my_process);
}

// A call of process 0, whose two devices hold blocks 1 and 3 of four; T is the elements'
// type.
template <typename T>
struct LocalCall {
  LocalCall(Signature signature, size_t in_count, size_t out_count) {
    call.group = MakeGroup(0);
    call.signature = std::make_shared<const Signature>(std::move(signature));
    for (size_t d = 0; d < 2; ++d) {
      in.emplace_back(in_count);
      out.emplace_back(out_count, T{});
      std::iota(in[d].begin(), in[d].end(), static_cast<T>(100 * (d + 1)));
    }
    for (size_t d = 0; d < 2; ++d) {
      call.local.push_back({{in[d].data()}, {out[d].data()}, {}});
    }
  }

  std::vector<std::vector<T>> in, out;
  Call call;
};

LocalCall<float> Scatter() {
  return {Signature::ReduceScatter(ReduceOp::kSum, DType::kF32, 4 * kBlock, "[20]"),
          4 * kBlock, kBlock};
}

LocalCall<uint8_t> Gather() {
  return {Signature::AllGather(4 * kBlock, "bool[20]"), kBlock, 4 * kBlock};
}

// Every range of a space of four blocks.
template <typename Check>
void ForEachRange(Check&& check) {
  for (size_t begin = 0; begin <= 4 * kBlock; ++begin) {
    for (size_t end = begin; end <= 4 * kBlock; ++end) check(Range{begin, end - begin});
  }
}

TEST(GroupTest, LocalMembersKnowTheirPositions) {
  for (int process : {0, 1}) {
    const auto group = MakeGroup(process);
    for (size_t i = 0; i < group->local_size(); ++i) {
      const Member& member = group->members()[group->LocalPosition(i)];
      EXPECT_EQ(member.process, process);
      EXPECT_EQ(group->LocalIndex(member.device), i);
    }
  }
}

TEST(LocalGatherTest, ContributesItsBlocksAndZerosElsewhere) {
  const LocalCall<uint8_t> local = Gather();
  std::vector<uint8_t> space(4 * kBlock, 0);
  std::copy(local.in[0].begin(), local.in[0].end(), space.begin() + 1 * kBlock);
  std::copy(local.in[1].begin(), local.in[1].end(), space.begin() + 3 * kBlock);
  ForEachRange([&](Range range) {
    std::vector<uint8_t> got(range.size + 1, 77);
    CombineLocal(local.call, range, got.data(), DType::kU8);
    const auto begin = space.begin() + static_cast<ptrdiff_t>(range.offset);
    std::vector<uint8_t> want(begin, begin + static_cast<ptrdiff_t>(range.size));
    want.push_back(77);  // Nothing is written behind the range.
    ASSERT_EQ(got, want) << range.offset << " + " << range.size;
  });
}

TEST(LocalGatherTest, SpreadsEverythingToEverybody) {
  LocalCall<uint8_t> local = Gather();
  std::vector<uint8_t> result(4 * kBlock);
  std::iota(result.begin(), result.end(), uint8_t{1});
  for (Range range : {Range{0, 7}, Range{7, 6}, Range{13, 7}}) {
    const void* source = result.data() + range.offset;
    SpreadLocal(local.call, range, std::span(&source, 1), DType::kU8);
  }
  for (const auto& out : local.out) EXPECT_EQ(out, result);
}

TEST(LocalScatterTest, GivesEachDeviceItsBlock) {
  ForEachRange([&](Range range) {
    LocalCall<float> local = Scatter();
    std::vector<float> first(range.size), second(range.size, 1000);
    std::iota(first.begin(), first.end(), static_cast<float>(range.offset));
    const std::vector<const void*> sources = {first.data(), second.data()};
    SpreadLocal(local.call, range, sources, DType::kF32);
    for (size_t d = 0; d < 2; ++d) {
      for (size_t e = 0; e < kBlock; ++e) {
        const size_t at = (2 * d + 1) * kBlock + e;
        const bool inside = at >= range.offset && at < range.end();
        const float want = inside ? static_cast<float>(at) + 1000 : 0;
        ASSERT_EQ(local.out[d][e], want) << range.offset << " + " << range.size;
      }
    }
  });
}

TEST(LocalScatterTest, ContributesTheSumOfWholeArguments) {
  const LocalCall<float> local = Scatter();
  std::vector<float> got(7);
  CombineLocal(local.call, {9, 7}, got.data(), DType::kF32);
  for (size_t e = 0; e < got.size(); ++e) {
    EXPECT_EQ(got[e], local.in[0][9 + e] + local.in[1][9 + e]);
  }
}

// One process: all members are local, so blocks lie in the order of the devices.
template <typename T>
LocalCall<T> Alone(LocalCall<T> local) {
  local.call.group =
      std::make_shared<const Group>(std::vector<Member>{{1, 0}, {0, 0}}, 0);
  return local;
}

TEST(LocalExchangeTest, ScattersAndGathersInAnyNumberOfTasks) {
  constexpr size_t kLarge = 3001;
  for (size_t tasks : {1, 2, 7}) {
    auto scatter = Alone(LocalCall<float>(
        Signature::ReduceScatter(ReduceOp::kMax, DType::kF32, 2 * kLarge, "[6002]"),
        2 * kLarge, kLarge));
    auto gather = Alone(LocalCall<uint8_t>(
        Signature::AllGather(2 * kLarge, "uint8[6002]"), kLarge, 2 * kLarge));
    for (size_t i = 0; i < tasks; ++i) {
      ExchangeLocal(scatter.call, LocalTask(scatter.call, tasks, i));
      ExchangeLocal(gather.call, LocalTask(gather.call, tasks, i));
    }
    for (size_t d = 0; d < 2; ++d) {
      const auto begin = scatter.in[1].begin() + static_cast<ptrdiff_t>(d * kLarge);
      EXPECT_TRUE(std::equal(scatter.out[d].begin(), scatter.out[d].end(), begin));
      std::vector<uint8_t> both = gather.in[0];
      both.insert(both.end(), gather.in[1].begin(), gather.in[1].end());
      EXPECT_EQ(gather.out[d], both);
    }
  }
}

TEST(LocalReduceTest, TheTypeOfPartialResultsIsTheCallers) {
  LocalCall<float> local(Signature(ReduceOp::kSum, DType::kF32, {4}, {"[4]"}), 4, 4);
  std::vector<uint16_t> narrow(4);
  CombineLocal(local.call, {0, 4}, narrow.data(), DType::kBF16);
  for (size_t e = 0; e < 4; ++e) {
    // 300 + 2 e: bfloat16 has 8 significant bits, so it ends in an even number.
    const uint32_t bits = static_cast<uint32_t>(narrow[e]) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    EXPECT_EQ(value, 300 + 2 * static_cast<float>(e));
  }
  const void* source = narrow.data();
  SpreadLocal(local.call, {0, 4}, std::span(&source, 1), DType::kBF16);
  for (size_t e = 0; e < 4; ++e) {
    EXPECT_EQ(local.out[1][e], 300 + 2 * static_cast<float>(e));
  }
}

TEST(SignatureTest, WordsAndHashesTellCallsApart) {
  const std::vector<Signature> all = {
      Signature(ReduceOp::kSum, DType::kF32, {6}, {"[2,3]"}),
      Signature(ReduceOp::kSum, DType::kF32, {6}, {"[2,3]"}, DType::kBF16),
      Signature(ReduceOp::kSum, DType::kF32, {6}, {"[2,3]"}, DType::kF16),
      Signature::ReduceScatter(ReduceOp::kSum, DType::kF32, 6, "[2,3]"),
      Signature::AllGather(24, "float32[2,3]"),
      Signature::AllGather(24, "int32[2,3]"),
  };
  EXPECT_EQ(all[0].text, "sum float32[2,3]");
  EXPECT_EQ(all[1].text, "sum float32[2,3] as bfloat16 on the wire");
  EXPECT_EQ(all[3].text, "reduce-scatter sum float32[2,3]");
  EXPECT_EQ(all[4].text, "all-gather float32[2,3]");
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(all[i].bytes(), 24u);
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i].hash, all[j].hash) << i << " " << j;
  }
}

}  // namespace
}  // namespace smddp
