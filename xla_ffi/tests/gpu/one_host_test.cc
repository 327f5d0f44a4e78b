// SPDX-License-Identifier: Apache-2.0
// All-reduces among the GPUs of one host, in one process and in several.
#include <gtest/gtest.h>

#include <deque>

#include "tests/gpu/gpu_job.h"

namespace smddp {
namespace {

class OneHost : public ::testing::TestWithParam<Layout> {};

std::string NameOf(const ::testing::TestParamInfo<Layout>& info) {
  return std::to_string(info.param.processes) + "ProcessesOf" +
         std::to_string(info.param.devices);
}

INSTANTIATE_TEST_SUITE_P(Layouts, OneHost,
                         ::testing::Values(Layout{1, 1}, Layout{1, 2}, Layout{1, 4},
                                           Layout{2, 1}, Layout{2, 2}, Layout{4, 1}),
                         NameOf);

TEST_P(OneHost, ReducesEveryType) {
  GpuJob job(GetParam());
  RunAndCheck(job, ReductionsOfEveryType(job));
}

TEST_P(OneHost, ReducesAnySize) {
  GpuJob job(GetParam());
  RunAndCheck(job, ReductionsOfAnySize(job));
}

TEST_P(OneHost, ManyCallsOnManyStreams) {
  constexpr int kCalls = 150, kStreams = 3;
  GpuJob job(GetParam());
  std::deque<GpuReduction> reductions;
  for (int i = 0; i < kCalls; ++i) {
    reductions.push_back(
        MakeReduction(job, kFloatSum, {static_cast<size_t>(1 + i * 37 % 500)}, i));
  }
  job.EachProcess([&](int p) {
    std::vector<std::vector<device::StreamHandle>> streams(job.gpus());
    for (int i = 0; i < kCalls; ++i) {
      for (int o = 0; o < job.gpus(); ++o) {
        if (i < kStreams) streams[o].push_back(*job.gpus(p).gpu(o).NewStream());
        const auto member = static_cast<size_t>(p * job.gpus() + o);
        const Status status =
            job.engine(p).AllReduce(o, job.job().group(p), reductions[i].Call(member),
                                    streams[o][(i * 7 + p) % streams[o].size()]);
        ASSERT_TRUE(status.ok()) << status.message();
      }
    }
  });
  job.Finish();
  for (const GpuReduction& reduction : reductions) reduction.Check(1);
  EXPECT_EQ(job.engine(0).stats().calls, uint64_t(kCalls * job.gpus()));
  EXPECT_TRUE(job.engine(0).Drain(0));
}

// Starts run beside what the program's stream does, and dones wait for them.
TEST_P(OneHost, StartsAndDones) {
  constexpr int kRounds = 20;
  GpuJob job(GetParam());
  std::deque<GpuReduction> started, plain;
  for (int i = 0; i < kRounds; ++i) {
    started.push_back(MakeReduction(job, kFloatSum, {1000}, 2 * i));
    plain.push_back(MakeReduction(job, kFloatSum, {700}, 2 * i + 1));
  }
  job.EachGpu([&](int p, int o, size_t member) {
    GpuEngine& engine = job.engine(p);
    HostGpu& gpu = job.gpus(p).gpu(o);
    const auto stream = job.stream(p, o);
    const auto& group = job.job().group(p);
    for (int i = 0; i < kRounds; ++i) {
      const GpuCall start = started[i].Call(member);
      ASSERT_TRUE(engine.Start(o, group, start, stream).ok());
      ASSERT_TRUE(engine.AllReduce(o, group, plain[i].Call(member), stream).ok());
      if (i % 3 == 0) continue;  // One that nobody asks for.
      const Status done = engine.Done(o, "done", start.to[0], stream);
      ASSERT_TRUE(done.ok()) << done.message();
      // Behind done, the program's stream sees the results.
      Bytes copy(started[i].result(member, 0).size());
      ASSERT_TRUE(gpu.Copy(copy.data(), start.to[0], copy.size(), stream).ok());
      gpu.Finish(stream);
      EXPECT_EQ(copy, started[i].result(member, 0));
    }
  });
  job.Finish();
  for (const GpuReduction& reduction : started) reduction.Check(1);
  for (const GpuReduction& reduction : plain) reduction.Check(1);
}

TEST(OneHostTest, DoneWithoutStartIsAnError) {
  GpuJob job({1, 1});
  int nothing = 0;
  const Status done = job.engine(0).Done(0, "psum('i')", &nothing, job.stream(0, 0));
  EXPECT_EQ(done.code(), StatusCode::kInternal);
  EXPECT_NE(done.message().find("psum('i')"), std::string::npos) << done.message();
}

// Two groups share GPU 0 of each process; each process uses streams of its own choice.
TEST(OneHostTest, SeveralGroupsOnOneGpu) {
  constexpr int kRounds = 30;
  GpuJob job({2, 2});
  std::deque<GpuReduction> of_all, of_two;
  for (int i = 0; i < kRounds; ++i) {
    of_all.push_back(MakeReduction(job, kFloatSum, {400}, 2 * i));
    of_two.push_back(GpuReduction(kFloatSum, {90'000}, 2, 2 * i + 1));
  }
  job.EachProcess([&](int p) {
    const auto two = std::make_shared<const Group>(
        std::vector<Member>{{Job::Device(0, 0), 0}, {Job::Device(1, 0), 1}}, p);
    const auto other = *job.gpus(p).gpu(0).NewStream();
    for (int i = 0; i < kRounds; ++i) {
      const auto stream = i % 2 == p ? other : job.stream(p, 0);
      Enqueue(job, p, of_all[i]);
      const Status status =
          job.engine(p).AllReduce(0, two, of_two[i].Call(static_cast<size_t>(p)), stream);
      ASSERT_TRUE(status.ok()) << status.message();
    }
  });
  job.Finish();
  for (const GpuReduction& reduction : of_all) reduction.Check(1);
  for (const GpuReduction& reduction : of_two) reduction.Check(1);
}

TEST(OneHostTest, AGroupOfTooManyGpusIsRefused) {
  GpuJob job({1, 9});
  GpuReduction reduction = MakeReduction(job, kFloatSum, {10}, 1);
  const Status status =
      job.engine(0).AllReduce(0, job.job().group(0), reduction.Call(0), job.stream(0, 0));
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("9 GPUs"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace smddp
