// SPDX-License-Identifier: Apache-2.0
// All-reduces of GPUs on several hosts: kernels on each, and the network in between.
#include <gtest/gtest.h>

#include <cmath>
#include <deque>

#include "tests/gpu/gpu_job.h"

namespace smddp {
namespace {

class Hosts : public ::testing::TestWithParam<Layout> {};

std::string NameOf(const ::testing::TestParamInfo<Layout>& info) {
  return std::to_string(info.param.hosts) + "HostsOf" +
         std::to_string(info.param.processes / info.param.hosts) + "x" +
         std::to_string(info.param.devices);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Hosts,
                         ::testing::Values(Layout{2, 1, 2}, Layout{2, 2, 2},
                                           Layout{4, 1, 2}, Layout{3, 1, 3},
                                           Layout{3, 2, 3}, Layout{6, 1, 3}),
                         NameOf);

TEST_P(Hosts, ReduceEveryType) {
  GpuJob job(GetParam());
  RunAndCheck(job, ReductionsOfEveryType(job));
}

TEST_P(Hosts, ReduceAnySize) {
  GpuJob job(GetParam());
  RunAndCheck(job, ReductionsOfAnySize(job));
}

TEST_P(Hosts, ManyCallsBackToBack) {
  GpuJob job(GetParam());
  std::deque<GpuReduction> reductions;
  for (int i = 0; i < 60; ++i) {
    reductions.push_back(
        MakeReduction(job, kFloatSum, {static_cast<size_t>(1 + i * 397 % 5000)}, i));
  }
  RunAndCheck(job, std::move(reductions));
}

TEST_P(Hosts, StartsAndDones) {
  constexpr int kRounds = 10;
  GpuJob job(GetParam());
  std::deque<GpuReduction> started, plain;
  for (int i = 0; i < kRounds; ++i) {
    started.push_back(MakeReduction(job, kFloatSum, {0, 3000}, 2 * i));
    plain.push_back(MakeReduction(job, kFloatSum, {700}, 2 * i + 1));
  }
  job.EachGpu([&](int p, int o, size_t member) {
    GpuEngine& engine = job.engine(p);
    const auto stream = job.stream(p, o);
    const auto& group = job.job().group(p);
    for (int i = 0; i < kRounds; ++i) {
      const GpuCall start = started[i].Call(member);
      ASSERT_TRUE(engine.Start(o, group, start, stream).ok());
      ASSERT_TRUE(engine.AllReduce(o, group, plain[i].Call(member), stream).ok());
      const Status done = engine.Done(o, "done", start.to[1], stream);
      ASSERT_TRUE(done.ok()) << done.message();
    }
  });
  job.Finish();
  for (const GpuReduction& reduction : started) reduction.Check(size_t(job.hosts()));
  for (const GpuReduction& reduction : plain) reduction.Check(size_t(job.hosts()));
}

// Between hosts only: all ranks have the same bits, within one rounding of each host's
// sum and one of the result.
TEST_P(Hosts, WireTypeIsRespected) {
  constexpr size_t kCount = 20'000;
  GpuJob job(GetParam());
  const auto members = static_cast<size_t>(job.processes() * job.gpus());
  GpuReduction reduction(kFloatSum, {kCount}, members, 1, DType::kBF16);
  reduction.FillWithWholeNumbers();
  job.EachGpu([&](int p, int o, size_t member) {
    const Status status = job.engine(p).AllReduce(
        o, job.job().group(p), reduction.Call(member), job.stream(p, o));
    ASSERT_TRUE(status.ok()) << status.message();
  });
  job.Finish();
  for (size_t m = 1; m < members; ++m) {
    EXPECT_EQ(reduction.result(m, 0), reduction.result(0, 0)) << "member " << m;
  }
  const Bytes exact = reduction.Exact(0, static_cast<size_t>(job.hosts()));
  size_t rounded = 0;
  for (size_t e = 0; e < kCount; ++e) {
    const auto want = testing::Get<float>(exact, e);
    const auto got = testing::Get<float>(reduction.result(0, 0), e);
    ASSERT_LE(std::fabs(got - want), std::ldexp(2 * want, -8)) << "element " << e;
    rounded += got != want ? 1 : 0;
  }
  EXPECT_GT(rounded, 0u);
}

}  // namespace
}  // namespace smddp
