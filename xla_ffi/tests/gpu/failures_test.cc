// SPDX-License-Identifier: Apache-2.0
// Collectives of GPUs that cannot end well: every wait ends, everybody is told, and no
// result is a wrong sum.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "tests/gpu/gpu_job.h"

namespace smddp {
namespace {

Settings WithTimeout(double seconds) {
  Settings settings = SmallGpuSettings();
  settings.timeout_seconds = seconds;
  return settings;
}

// The error that an earlier call left on a process: it comes a moment later.
Status AwaitUntold(GpuEngine& engine) {
  for (int i = 0; i < 3000; ++i) {
    if (Status status = engine.TakeUntold(); !status.ok()) return status;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return {};
}

void ExpectWords(const Status& status, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    EXPECT_NE(status.message().find(word), std::string::npos)
        << "no '" << word << "' in: " << status.message();
  }
}

std::shared_ptr<const Group> GroupOf(const std::vector<int>& processes, int me) {
  std::vector<Member> members;
  for (const int p : processes) members.push_back({Job::Device(p, 0), p});
  return std::make_shared<const Group>(members, me);
}

// Makes the group of all, so that only what is under test is left to go wrong.
void Prepare(GpuJob& job) {
  job.EachProcess([&](int p) {
    const Status prepared = job.engine(p).Prepare(job.job().group(p));
    ASSERT_TRUE(prepared.ok()) << prepared.message();
  });
}

Status AllReduce(GpuJob& job, int p, GpuReduction& reduction) {
  return job.engine(p).AllReduce(0, job.job().group(p), reduction.Call(size_t(p)),
                                 job.stream(p, 0));
}

TEST(GpuFailures, ARankThatNeverComesIsNamedAtTheDeadline) {
  GpuJob job({3, 1}, WithTimeout(1));
  Prepare(job);
  GpuReduction reduction = MakeReduction(job, kFloatSum, {1000}, 1);
  for (const int p : {0, 1}) ASSERT_TRUE(AllReduce(job, p, reduction).ok());
  job.Finish();
  for (const int p : {0, 1}) {
    const Status told = AwaitUntold(job.engine(p));
    ExpectWords(told, {"rank 2", "psum #1", "SMDDP_TIMEOUT"});
    EXPECT_TRUE(reduction.Poisoned(size_t(p))) << "rank " << p;
  }
  // The one that comes too late is told as well.
  const Status late = AllReduce(job, 2, reduction);
  const Status told = late.ok() ? AwaitUntold(job.engine(2)) : late;
  ExpectWords(told, {"psum #1"});
  job.Finish();
  EXPECT_EQ(job.engine(0).stats().failed, 1u);
}

TEST(GpuFailures, OtherGroupsOnTheGpuGoOn) {
  GpuJob job({3, 1}, WithTimeout(1));
  Prepare(job);
  GpuReduction stuck = MakeReduction(job, kFloatSum, {1000}, 1);
  for (const int p : {0, 1}) ASSERT_TRUE(AllReduce(job, p, stuck).ok());
  std::vector<std::thread> threads;
  GpuReduction pair(kFloatSum, {5000}, 2, 2), again(kFloatSum, {5000}, 2, 3);
  for (const int p : {0, 1}) {
    threads.emplace_back([&, p] {
      const auto group = GroupOf({0, 1}, p);
      const auto run = [&](GpuReduction& reduction) {
        return job.engine(p).AllReduce(0, group, reduction.Call(size_t(p)),
                                       job.stream(p, 0));
      };
      ASSERT_TRUE(run(pair).ok());
      job.gpus(p).FinishAll();
      // The error of the other group comes with the next call, which takes part all the
      // same: its peers count on it.
      for (Status told; told.ok();) told = job.engine(p).TakeUntold();
      EXPECT_TRUE(run(again).ok());
    });
  }
  for (std::thread& thread : threads) thread.join();
  job.Finish();
  pair.Check(1);
  again.Check(1);
}

TEST(GpuFailures, AnErrorComesWithTheNextCallOfAnyGroup) {
  GpuJob job({2, 1}, WithTimeout(1));
  Prepare(job);
  GpuReduction stuck = MakeReduction(job, kFloatSum, {10}, 1);
  ASSERT_TRUE(AllReduce(job, 0, stuck).ok());
  job.Finish();
  while (job.engine(0).stats().failed == 0) std::this_thread::yield();
  GpuReduction alone(kFloatSum, {10}, 1, 2);
  const auto group = GroupOf({0}, 0);
  const auto run = [&] {
    return job.engine(0).AllReduce(0, group, alone.Call(0), job.stream(0, 0));
  };
  ExpectWords(run(), {"rank 1", "psum #1"});
  EXPECT_TRUE(run().ok());
  job.Finish();
  alone.Check(1);
  // Its own group stays at an end.
  for (int i = 0; i < 2; ++i) ExpectWords(AllReduce(job, 0, stuck), {"psum #1"});
}

TEST(GpuFailures, AKilledPeerIsNamedLongBeforeTheDeadline) {
  GpuJob job({3, 1}, WithTimeout(60));
  Prepare(job);
  GpuReduction reduction = MakeReduction(job, kFloatSum, {1000}, 1);
  for (const int p : {0, 1}) ASSERT_TRUE(AllReduce(job, p, reduction).ok());
  job.Kill(2);
  job.Finish();
  for (const int p : {0, 1}) {
    ExpectWords(AwaitUntold(job.engine(p)), {"rank 2", "is gone"});
    EXPECT_TRUE(reduction.Poisoned(size_t(p))) << "rank " << p;
  }
}

TEST(GpuFailures, ACallAfterTheLossFailsAtOnce) {
  GpuJob job({2, 1}, WithTimeout(60));
  Prepare(job);
  job.Kill(1);
  while (job.job().engine(0).mesh()->Lost(1) == std::nullopt) std::this_thread::yield();
  GpuReduction reduction = MakeReduction(job, kFloatSum, {10}, 1);
  // The news may be a moment behind.
  Status status = AllReduce(job, 0, reduction);
  if (status.ok()) status = AwaitUntold(job.engine(0));
  EXPECT_EQ(status.code(), StatusCode::kPeerLost);
  ExpectWords(status, {"rank 1", "is gone"});
  job.Finish();
}

TEST(GpuFailures, APeerThatHasFinishedMayLeave) {
  GpuJob job({2, 1}, WithTimeout(60));
  GpuReduction reduction = MakeReduction(job, kFloatSum, {5000}, 1);
  job.EachProcess([&](int p) { Enqueue(job, p, reduction); });
  job.gpus(1).FinishAll();
  job.Kill(1);
  job.Finish();
  reduction.Check(1);
  EXPECT_TRUE(job.engine(0).TakeUntold().ok());
}

TEST(GpuFailures, RanksThatDisagreeAreTold) {
  GpuJob job({2, 1}, WithTimeout(60));
  Prepare(job);
  GpuReduction mine = MakeReduction(job, kFloatSum, {100}, 1);
  GpuReduction theirs = MakeReduction(job, kFloatSum, {101}, 1);
  ASSERT_TRUE(AllReduce(job, 0, mine).ok());
  ASSERT_TRUE(AllReduce(job, 1, theirs).ok());
  job.Finish();
  size_t disagree = 0;
  for (const int p : {0, 1}) {
    const Status told = AwaitUntold(job.engine(p));
    disagree += told.code() == StatusCode::kMismatch ? 1 : 0;
    ExpectWords(told, {"disagree", p == 0 ? "rank 1" : "rank 0"});
  }
  EXPECT_GE(disagree, 1u);
  EXPECT_TRUE(mine.Poisoned(0));
  EXPECT_TRUE(theirs.Poisoned(1));
}

TEST(GpuFailures, AnAbortEndsWaitsHereAndAtThePeers) {
  GpuJob job({3, 1}, WithTimeout(60));
  Prepare(job);
  GpuReduction reduction = MakeReduction(job, kFloatSum, {1000}, 1);
  for (const int p : {0, 1}) ASSERT_TRUE(AllReduce(job, p, reduction).ok());
  job.engine(0).Abort("interrupted");
  job.Finish();
  for (const int p : {0, 1}) {
    ExpectWords(AwaitUntold(job.engine(p)), {"rank 0", "interrupted"});
    EXPECT_TRUE(reduction.Poisoned(size_t(p)));
  }
}

TEST(GpuFailures, LeavingRefusesWhatComesLater) {
  GpuJob job({1, 1});
  GpuReduction reduction = MakeReduction(job, kFloatSum, {10}, 1);
  ASSERT_TRUE(AllReduce(job, 0, reduction).ok());
  EXPECT_TRUE(job.engine(0).Drain(30));
  job.engine(0).Leave("done");
  EXPECT_TRUE(job.engine(0).TakeUntold().ok());
  ExpectWords(AllReduce(job, 0, reduction), {"done"});
}

// Several hosts: two of two processes with a GPU each, ranks 0 and 1, 2 and 3.

TEST(GpuFailures, ADeadPeerOnAnotherHostIsAnErrorForAll) {
  GpuJob job({4, 1, 2}, WithTimeout(60));
  Prepare(job);
  GpuReduction reduction = MakeReduction(job, kFloatSum, {30'000}, 1);
  reduction.FillWithWholeNumbers();
  for (const int p : {0, 1, 2}) ASSERT_TRUE(AllReduce(job, p, reduction).ok());
  job.Kill(3);
  job.Finish();
  for (const int p : {0, 1, 2}) {
    const Status told = AwaitUntold(job.engine(p));
    EXPECT_FALSE(told.ok());
    ExpectWords(told, {"rank 3"});
    EXPECT_TRUE(reduction.RightOrPoisoned(size_t(p), 2)) << "rank " << p;
  }
}

TEST(GpuFailures, ARankOfAnotherHostThatNeverComesIsNamed) {
  GpuJob job({4, 1, 2}, WithTimeout(2));
  Prepare(job);
  GpuReduction reduction = MakeReduction(job, kFloatSum, {30'000}, 1);
  reduction.FillWithWholeNumbers();
  for (const int p : {0, 1, 2}) ASSERT_TRUE(AllReduce(job, p, reduction).ok());
  job.Finish();
  bool named = false;
  for (const int p : {0, 1, 2}) {
    const Status told = AwaitUntold(job.engine(p));
    EXPECT_FALSE(told.ok()) << "rank " << p;
    ExpectWords(told, {"psum #1"});
    named = named || told.message().find("rank 3") != std::string::npos;
    EXPECT_TRUE(reduction.RightOrPoisoned(size_t(p), 2)) << "rank " << p;
  }
  EXPECT_TRUE(named);
}

// Integers have no NaN: nothing of a host whose kernels gave up may reach the others.
TEST(GpuFailures, NothingPoisonedCrossesTheNetwork) {
  GpuJob job({4, 1, 2}, WithTimeout(60));
  Prepare(job);
  const Case integers{ReduceOp::kSum, DType::kS32, DType::kS32};
  GpuReduction reduction = MakeReduction(job, integers, {30'000}, 1);
  GpuReduction another = MakeReduction(job, integers, {30'000}, 2);
  const auto submitted = [&] { return job.job().engine(0).stats().calls; };
  const uint64_t before = submitted();
  for (const int p : {0, 2, 3}) ASSERT_TRUE(AllReduce(job, p, reduction).ok());
  ASSERT_TRUE(AllReduce(job, 1, another).ok());
  job.Finish();
  for (const int p : {0, 2, 3}) {
    EXPECT_FALSE(AwaitUntold(job.engine(p)).ok()) << "rank " << p;
    EXPECT_TRUE(reduction.RightOrPoisoned(size_t(p), 2)) << "rank " << p;
  }
  EXPECT_EQ(submitted(), before);
}

TEST(GpuFailures, AnEngineThatAbortsEndsTheNetworkLeg) {
  GpuJob job({2, 1, 2}, WithTimeout(60));
  Prepare(job);
  GpuReduction reduction = MakeReduction(job, kFloatSum, {30'000}, 1);
  ASSERT_TRUE(AllReduce(job, 0, reduction).ok());
  job.job().engine(0).Abort("interrupted");
  ExpectWords(AwaitUntold(job.engine(0)), {"interrupted"});
  job.Finish();
  EXPECT_TRUE(reduction.RightOrPoisoned(0, 2));
  const Status status = AllReduce(job, 1, reduction);
  ExpectWords(status.ok() ? AwaitUntold(job.engine(1)) : status, {"interrupted"});
  job.Finish();
}

}  // namespace
}  // namespace smddp
