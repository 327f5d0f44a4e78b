// SPDX-License-Identifier: Apache-2.0
// The trial of a host's GPUs, and groups that cannot come together.
#include "gpu/trial.h"

#include <gtest/gtest.h>

#include "tests/gpu/gpu_job.h"

namespace smddp {
namespace {

Settings ShortSettings() {
  Settings settings = SmallGpuSettings();
  settings.timeout_seconds = 5;
  return settings;
}

std::vector<Status> TryAll(GpuJob& job, std::vector<int> ordinals = {}) {
  std::vector<Status> tried(static_cast<size_t>(job.processes()));
  job.EachProcess([&](int p) {
    tried[static_cast<size_t>(p)] = TryGpus(job.job().engine(p), job.gpus(p), ordinals);
  });
  return tried;
}

TEST(GpuTrial, SucceedsWhereGpusReachEachOther) {
  for (const Layout& layout : {Layout{1, 3}, Layout{3, 2}, Layout{4, 1, 2}}) {
    GpuJob job(layout, ShortSettings());
    for (const Status& tried : TryAll(job)) EXPECT_TRUE(tried.ok()) << tried.message();
  }
}

TEST(GpuTrial, TriesTheGpusThatAreNamed) {
  GpuJob job({2, 3}, ShortSettings());
  for (const Status& tried : TryAll(job, {2})) EXPECT_TRUE(tried.ok()) << tried.message();
}

TEST(GpuTrial, SaysWhyInOneProcess) {
  GpuJob job({1, 2}, ShortSettings());
  job.gpus(0).RefusePeers();
  const Status tried = TryAll(job)[0];
  EXPECT_NE(tried.message().find("peer access"), std::string::npos) << tried.message();
}

// One process is refused: all hear why, and nobody waits for the deadline.
TEST(GpuTrial, SaysWhyInEveryProcess) {
  GpuJob job({3, 1}, ShortSettings());
  job.gpus(1).RefusePeers();
  const std::vector<Status> tried = TryAll(job);
  EXPECT_NE(tried[1].message().find("peer access"), std::string::npos);
  EXPECT_EQ(tried[1].code(), StatusCode::kInvalidArgument);
  for (const Status& status : tried) EXPECT_NE(status.code(), StatusCode::kDeadline);
}

TEST(GpuTrial, SaysThatAGpuIsNotThere) {
  GpuJob job({2, 1}, ShortSettings());
  for (const Status& tried : TryAll(job, {7})) {
    EXPECT_NE(tried.message().find("GPU 7"), std::string::npos) << tried.message();
  }
}

TEST(GpuTrial, AGroupWhoseMemoryCannotBeMappedIsAnErrorForAll) {
  GpuJob job({2, 1}, ShortSettings());
  job.gpus(0).RefusePeers();
  job.EachProcess([&](int p) {
    GpuReduction reduction = MakeReduction(job, kFloatSum, {10}, 1);
    for (int again = 0; again < 2; ++again) {
      const Status status = job.engine(p).AllReduce(
          0, job.job().group(p), reduction.Call(size_t(p)), job.stream(p, 0));
      // Who has mapped everything before the other says no hears of it a moment later.
      if (p == 1 && status.ok()) continue;
      EXPECT_NE(status.message().find("peer access"), std::string::npos)
          << status.message();
    }
  });
}

TEST(GpuTrial, UnlikeStagingIsAnErrorThatNamesTheSetting) {
  Job job({2, 1}, ShortSettings());
  device::testing::HostGpus mine(1), theirs(1);
  const auto trade = [&](int p, HostGpus& gpus, size_t bytes) {
    std::vector<MemoryMember> members = {{0, nullptr}, {1, nullptr}};
    members[size_t(p)].gpu = *gpus.Get(0);
    return TradeMemory(job.engine(p), 17, members, bytes, Deadline::After(5)).status();
  };
  std::vector<Status> traded(2);
  job.EachProcess([&](int p) {
    traded[size_t(p)] = trade(p, p == 0 ? mine : theirs, p == 0 ? 4096 : 8192);
  });
  const bool first = traded[0].code() == StatusCode::kMismatch;
  const Status& said = traded[first ? 0 : 1];
  EXPECT_EQ(said.code(), StatusCode::kMismatch) << said.message();
  EXPECT_NE(said.message().find("SMDDP_GPU_STAGING_BYTES"), std::string::npos);
  EXPECT_NE(said.message().find("4096"), std::string::npos);
  EXPECT_NE(said.message().find("8192"), std::string::npos);
}

}  // namespace
}  // namespace smddp
