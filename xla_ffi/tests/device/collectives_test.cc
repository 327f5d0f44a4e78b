// SPDX-License-Identifier: Apache-2.0
// Every kernel, on host threads: results bit for bit, and nothing else written.
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "tests/device/ranks.h"

namespace smddp::device::testing {
namespace {

using smddp::testing::Expected;
using smddp::testing::FirstDifference;
using smddp::testing::RandomArray;

using smddp::testing::Case;
using smddp::testing::UncastCases;

std::vector<Case> AllCases() {
  std::vector<Case> cases = UncastCases();
  smddp::testing::AddCastCases(ReduceOp::kSum, cases);
  return cases;
}

std::string CaseName(const ::testing::TestParamInfo<Case>& info) {
  return std::string(Name(info.param.op)) + "_" + Name(info.param.in) + "_" +
         Name(info.param.out);
}

// Tensors of `counts` elements for every rank, and what their reduction must give.
class Tensors {
 public:
  Tensors(const Case& c, uint32_t ranks, std::vector<size_t> counts, size_t misalignment)
      : case_(c), counts_(std::move(counts)), arrays_(ranks) {
    std::mt19937_64 random(ranks + counts_.size() + misalignment);
    for (size_t count : counts_) {
      std::vector<Bytes> inputs;
      for (Arrays& rank : arrays_) {
        inputs.push_back(RandomArray(c.in, count, random));
        rank.Add(inputs.back(), count * SizeOf(c.out), count, misalignment);
      }
      expected_.push_back(Expected(c.op, c.in, c.out, inputs, count));
    }
  }

  std::span<const Tensor> of(uint32_t rank) const { return arrays_[rank].tensors; }

  void Check() {
    for (size_t rank = 0; rank < arrays_.size(); ++rank) {
      for (size_t i = 0; i < counts_.size(); ++i) {
        UserArray& to = arrays_[rank].to[i];
        EXPECT_EQ(FirstDifference(case_.out, to.Value(), expected_[i], counts_[i]),
                  counts_[i])
            << "rank " << rank << ", tensor " << i << " of " << counts_[i];
        EXPECT_TRUE(to.GuardsHold()) << "rank " << rank << ", tensor " << i;
        // All ranks hold the same bits, whatever NaNs are among them.
        EXPECT_EQ(to.Value(), arrays_[0].to[i].Value()) << "rank " << rank;
      }
    }
  }

 private:
  const Case case_;
  const std::vector<size_t> counts_;
  std::vector<Arrays> arrays_;
  std::vector<Bytes> expected_;
};

// Nothing, one element, less than a unit, whole units, and some that make steps of many.
const std::vector<std::vector<size_t>> kShapes = {
    {1}, {3, 0, 16, 129}, {5, 5, 5, 5, 5, 5, 5, 5, 5, 5}, {513, 7}, {64}};

class DeviceCollectives : public ::testing::TestWithParam<Case> {};

void TestAllReduce(const Case& c, uint32_t ranks, Algorithm algorithm,
                   size_t misalignment) {
  SCOPED_TRACE(std::to_string(ranks) + " ranks, algorithm " +
               std::to_string(static_cast<int>(algorithm)));
  Ranks group(ranks);
  std::vector<std::unique_ptr<Tensors>> all;
  for (size_t i = 0; i < kShapes.size(); ++i) {
    all.push_back(std::make_unique<Tensors>(c, ranks, kShapes[i], misalignment));
    for (uint32_t r = 0; r < ranks; ++r) {
      group.Enqueue(r, FindHostReduce(c.op, c.in, c.out),
                    MakeAllReduce(group.group(r), i + 1, algorithm, Kind{c.in, c.out},
                                  all.back()->of(r)),
                    1 + i % 2);
    }
  }
  group.Run();
  for (auto& tensors : all) tensors->Check();
}

TEST_P(DeviceCollectives, OneShot) {
  for (uint32_t ranks : {2, 4, 8}) {
    TestAllReduce(GetParam(), ranks, Algorithm::kOneShot, 0);
  }
}

TEST_P(DeviceCollectives, TwoShot) {
  for (uint32_t ranks : {2, 4, 8}) {
    TestAllReduce(GetParam(), ranks, Algorithm::kTwoShot, 0);
  }
}

TEST_P(DeviceCollectives, ArraysThatStartWithinAVector) {
  const size_t element = std::min(SizeOf(GetParam().in), SizeOf(GetParam().out));
  TestAllReduce(GetParam(), 3, Algorithm::kOneShot, element % 16);
  TestAllReduce(GetParam(), 3, Algorithm::kTwoShot, element % 16);
}

// What stands on both sides of the network when there are several hosts. Parts are
// partial results of the tensors' own type.
class DeviceHalves : public ::testing::TestWithParam<Case> {};

TEST_P(DeviceHalves, ScatteredSumsGatheredAgain) {
  const auto [op, in, out] = GetParam();
  const DType partial = PartialType(in, op);
  for (uint32_t ranks : {2, 4, 8}) {
    Ranks group(ranks);
    std::vector<std::unique_ptr<Tensors>> all;
    std::vector<std::unique_ptr<UserArray>> parts;
    for (size_t i = 0; i < kShapes.size(); ++i) {
      const Kind there{in, partial};
      const Kind back{partial, out};
      all.push_back(std::make_unique<Tensors>(GetParam(), ranks, kShapes[i], 0));
      for (uint32_t r = 0; r < ranks; ++r) {
        const auto tensors = all.back()->of(r);
        const size_t elements = PartElements(there, tensors, ranks, r);
        EXPECT_EQ(elements, PartElements(back, tensors, ranks, r));
        parts.push_back(std::make_unique<UserArray>(elements * SizeOf(partial)));
        void* const part = parts.back()->data();
        group.Enqueue(r, FindHostReduce(op, in, partial),
                      MakeReduceScatter(group.group(r), 2 * i + 1, there, tensors, part),
                      1 + i % 2);
        group.Enqueue(r, FindHostGather(back),
                      MakeAllGather(group.group(r), 2 * i + 2, back, part, tensors),
                      2 - i % 2);
      }
    }
    group.Run();
    for (auto& tensors : all) tensors->Check();
    for (auto& part : parts) EXPECT_TRUE(part->GuardsHold());
  }
}

INSTANTIATE_TEST_SUITE_P(All, DeviceCollectives, ::testing::ValuesIn(AllCases()),
                         CaseName);
INSTANTIATE_TEST_SUITE_P(All, DeviceHalves, ::testing::ValuesIn(UncastCases()), CaseName);

// One tensor of `value` on every rank, reduced to the mean of all ranks.
template <class T>
T MeanOf(DType in, DType out, T value, uint32_t ranks) {
  Ranks group(ranks);
  Bytes bytes(SizeOf(in));
  smddp::testing::PutAs(in, bytes, 0, value);
  std::vector<Arrays> arrays(ranks);
  for (uint32_t r = 0; r < ranks; ++r) {
    arrays[r].Add(bytes, SizeOf(out), 1, 0);
    group.Enqueue(r, FindHostReduce(ReduceOp::kSum, in, out),
                  MakeAllReduce(group.group(r), 1, Algorithm::kTwoShot,
                                Kind{in, out, 1.0 / ranks}, arrays[r].tensors),
                  1);
  }
  group.Run(1);
  return smddp::testing::GetAs<T>(out, arrays[0].to[0].Value(), 0);
}

TEST(DeviceScale, MeansAreRoundedOnceFromFloat32) {
  EXPECT_EQ(MeanOf<float>(DType::kF32, DType::kF32, 2.5f, 4), 2.5f);
  EXPECT_EQ(MeanOf<double>(DType::kF64, DType::kF64, 0.1, 2), 0.1);
  // The sum of eight is beyond float16 and the mean is not.
  EXPECT_EQ(MeanOf<float>(DType::kF16, DType::kF16, 32768.f, 8), 32768.f);
  EXPECT_EQ(MeanOf<float>(DType::kF32, DType::kBF16, 257.f, 2), 256.f);
}

TEST(DeviceScale, AGatherScalesAndCastsWhatItBrings) {
  Ranks group(2);
  const Kind kind{DType::kF32, DType::kBF16, 0.5};
  Bytes part(8 * sizeof(float));
  for (size_t e = 0; e < 8; ++e) smddp::testing::Put<float>(part, e, 2.f * e);
  UserArray brought(part);
  std::vector<Arrays> arrays(2);
  for (uint32_t r = 0; r < 2; ++r) {
    arrays[r].Add(Bytes(16 * 4), 16 * 2, 16, 0);
    group.Enqueue(
        r, FindHostGather(kind),
        MakeAllGather(group.group(r), 1, kind, brought.data(), arrays[r].tensors), 1);
  }
  group.Run(1);
  for (size_t e = 0; e < 16; ++e) {
    const Bytes value = arrays[1].to[0].Value();
    EXPECT_EQ(smddp::testing::GetAs<float>(DType::kBF16, value, e), e % 8);
  }
}

TEST(DeviceKernels, WhatDoesNotExistIsNotFound) {
  EXPECT_EQ(FindHostReduce(ReduceOp::kMax, DType::kF16, DType::kF32), nullptr);
  EXPECT_EQ(FindHostReduce(ReduceOp::kSum, DType::kS32, DType::kF32), nullptr);
  EXPECT_EQ(FindHostGather(Kind{DType::kS8, DType::kS8, 0.5}), nullptr);
}

}  // namespace
}  // namespace smddp::device::testing
