// SPDX-License-Identifier: Apache-2.0
// The trial of a host's GPUs, and groups that cannot come together.
#include "gpu/trial.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

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

// Who has all that it needs itself hears of the others' failure a moment later.
Status AwaitFailure(GpuJob& job, int process) {
  Status prepared;
  for (int i = 0; i < 3000 && prepared.ok(); ++i) {
    prepared = job.engine(process).Prepare(job.job().group(process));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return prepared;
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
  GpuReduction reduction = MakeReduction(job, kFloatSum, {10}, 1);
  job.gpus(0).RefusePeers();
  std::vector<Status> first(2), second(2);
  job.EachProcess([&](int p) {
    const auto run = [&] {
      return job.engine(p).AllReduce(0, job.job().group(p), reduction.Call(size_t(p)),
                                     job.stream(p, 0));
    };
    first[size_t(p)] = run();
    // Who has mapped everything before the other says no hears of it a moment later.
    job.gpus(p).FinishAll();
    second[size_t(p)] = run();
  });
  for (const Status& status : {first[0], second[0], second[1]}) {
    EXPECT_NE(status.message().find("peer access"), std::string::npos)
        << status.message();
  }
}

TEST(GpuTrial, AProcessThatIsGoneIsNamed) {
  GpuJob job({2, 1}, ShortSettings());
  job.Kill(1);
  const Status tried = TryGpus(job.job().engine(0), job.gpus(0), {});
  EXPECT_EQ(tried.code(), StatusCode::kPeerLost);
  EXPECT_NE(tried.message().find("rank 1"), std::string::npos) << tried.message();
}

TEST(GpuTrial, AProcessThatMakesNoGroupIsNamedAtTheDeadline) {
  Settings settings = ShortSettings();
  settings.timeout_seconds = 1;
  GpuJob job({2, 1}, settings);
  const Status prepared = job.engine(0).Prepare(job.job().group(0));
  EXPECT_EQ(prepared.code(), StatusCode::kDeadline);
  EXPECT_NE(prepared.message().find("rank 1"), std::string::npos) << prepared.message();
  // Who comes too late hears of it.
  const Status late = AwaitFailure(job, 1);
  EXPECT_EQ(late.code(), StatusCode::kAborted);
  EXPECT_NE(late.message().find("rank 0"), std::string::npos) << late.message();
}

TEST(GpuTrial, AHostThatCannotPrepareIsAnErrorOnTheOthers) {
  GpuJob job({4, 1, 2}, ShortSettings());
  job.gpus(2).RefusePeers();
  job.EachProcess([&](int p) {
    const Status prepared = AwaitFailure(job, p);
    EXPECT_FALSE(prepared.ok()) << "rank " << p;
    EXPECT_NE(prepared.code(), StatusCode::kDeadline) << prepared.message();
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
