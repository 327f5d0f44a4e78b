// SPDX-License-Identifier: Apache-2.0
#include "collective/pending_calls.h"

#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <thread>
#include <vector>

namespace smddp {
namespace {

constexpr DeviceRun kRun = {.device = 3, .run_id = 7};
constexpr DeviceRun kOtherRun = {.device = 3, .run_id = 8};

const void* Address(size_t n) { return reinterpret_cast<const void*>(n << 6); }

// What somebody was told, and how often.
class Told {
 public:
  PendingCalls::Then Then() {
    return [this](const Status& status) {
      status_ = status;
      ++times_;
    };
  }
  int times() const { return times_; }
  bool ok() const { return times_ == 1 && status_.ok(); }
  std::string error() const { return times_ == 1 ? status_.message() : ""; }

 private:
  Status status_;
  std::atomic<int> times_ = 0;
};

Status Lost() { return Status(StatusCode::kPeerLost, "rank 1 is gone"); }

class PendingCallsTest : public testing::Test {
 protected:
  PendingCalls::Then Begin(const DeviceRun& run, size_t n) {
    auto over = pending_.Begin(run, Address(n), {Address(n + 1000)}, "start");
    EXPECT_TRUE(over.ok()) << over.status().message();
    return over.ok() ? *over : [](const Status&) {};
  }
  void End(const DeviceRun& run, size_t n, Told& told) {
    pending_.End(run, Address(n), {Address(n + 1000)}, "done", told.Then());
  }

  PendingCalls pending_;
};

TEST_F(PendingCallsTest, ADoneIsToldWhenItsCallIsOver) {
  const auto first = Begin(kRun, 1), second = Begin(kRun, 2);
  Told of_first, of_second;
  second(Status());
  End(kRun, 2, of_second);  // Late, and out of order.
  EXPECT_TRUE(of_second.ok());
  End(kRun, 1, of_first);  // Early.
  EXPECT_EQ(of_first.times(), 0);
  first(Status());
  EXPECT_TRUE(of_first.ok());
  EXPECT_EQ(pending_.size(), 0);
}

TEST_F(PendingCallsTest, AMovedBufferIsAnErrorOnceNothingIsUnderWay) {
  const auto over = Begin(kRun, 1);
  Told told;
  End(kRun, 2, told);
  EXPECT_EQ(told.times(), 0) << "XLA would take back what is still written to";
  over(Status());
  EXPECT_NE(told.error().find("moved"), std::string::npos) << told.error();
  EXPECT_NE(told.error().find("smddp_jax.psum"), std::string::npos) << told.error();
  EXPECT_EQ(pending_.size(), 0);
}

TEST_F(PendingCallsTest, AMovedArgumentIsAnError) {
  Begin(kRun, 1)(Status());
  Told told;
  pending_.End(kRun, Address(1), {Address(1002)}, "done", told.Then());
  EXPECT_NE(told.error().find("moved"), std::string::npos) << told.error();
}

TEST_F(PendingCallsTest, ABufferOfAnotherRunIsAMovedOne) {
  Begin(kOtherRun, 1)(Status());
  Told told;
  End(kRun, 1, told);
  EXPECT_NE(told.error().find("moved"), std::string::npos) << told.error();
  EXPECT_EQ(pending_.size(), 1) << "the other run has its own done";
}

TEST_F(PendingCallsTest, AFailedCallIsToldOnceAllOfItsRunAreOver) {
  const auto failing = Begin(kRun, 1), slow = Begin(kRun, 2);
  const auto of_other_run = Begin(kOtherRun, 3);
  Told told;
  End(kRun, 1, told);
  failing(Lost());
  EXPECT_EQ(told.times(), 0);
  slow(Status());
  EXPECT_EQ(told.error(), Lost().message());
  EXPECT_EQ(pending_.size(), 1);
  of_other_run(Status());
}

TEST_F(PendingCallsTest, ACallThatFailedBeforeItsDoneFailsIt) {
  Begin(kRun, 1)(Lost());
  const auto slow = Begin(kRun, 2);
  Told told;
  End(kRun, 1, told);
  EXPECT_EQ(told.times(), 0);
  slow(Lost());
  EXPECT_EQ(told.error(), Lost().message());
}

TEST_F(PendingCallsTest, AFailedRunStartsNothingMore) {
  const auto slow = Begin(kRun, 1);
  Told told;
  pending_.Fail(kRun, Lost(), told.Then());
  EXPECT_EQ(pending_.Begin(kRun, Address(2), {}, "start").status().code(),
            StatusCode::kPeerLost);
  Begin(kOtherRun, 2)(Status());
  EXPECT_EQ(told.times(), 0);
  slow(Status());
  EXPECT_EQ(told.error(), Lost().message());
}

TEST_F(PendingCallsTest, AFailureWithNothingUnderWayIsToldAtOnce) {
  Told told;
  pending_.Fail(kRun, Lost(), told.Then());
  EXPECT_EQ(told.error(), Lost().message());
}

TEST_F(PendingCallsTest, WhatXlaGaveUpMakesWayOnceItIsOver) {
  const auto abandoned = Begin(kRun, 1);
  auto again = pending_.Begin(kOtherRun, Address(1), {}, "start");
  EXPECT_EQ(again.status().code(), StatusCode::kInternal) << "two writers";
  abandoned(Status());
  Told told;
  Begin(kOtherRun, 1)(Status());
  End(kOtherRun, 1, told);
  EXPECT_TRUE(told.ok());
  EXPECT_EQ(pending_.size(), 0);
}

// Dones race with what they wait for, some of which fails.
TEST_F(PendingCallsTest, ManyThreads) {
  constexpr size_t kCalls = 64;
  for (int64_t run_id = 0; run_id < 50; ++run_id) {
    const DeviceRun run = {.device = 0, .run_id = run_id};
    const bool fails = run_id % 2 == 1;
    std::vector<PendingCalls::Then> over;
    for (size_t n = 0; n < kCalls; ++n) over.push_back(Begin(run, n + 1));
    std::vector<Told> told(kCalls);
    std::atomic<size_t> left = kCalls;
    {
      const std::jthread engine([&] {
        for (size_t n = 0; n < kCalls; ++n) {
          --left;
          over[n * 5 % kCalls](fails && n == kCalls / 2 ? Lost() : Status());
        }
      });
      for (size_t n = 0; n < kCalls; ++n) {
        auto then = [&, tell = told[n].Then()](const Status& status) {
          EXPECT_TRUE(status.ok() || left == 0) << "told too early";
          tell(status);
        };
        const size_t place = n * 3 % kCalls + 1;
        pending_.End(run, Address(place), {Address(place + 1000)}, "done", then);
      }
    }
    size_t failed = 0;
    for (const Told& each : told) {
      EXPECT_EQ(each.times(), 1);
      EXPECT_EQ(each.error(), each.ok() ? "" : Lost().message());
      failed += each.ok() ? 0 : 1;
    }
    EXPECT_EQ(failed > 0, fails);
    EXPECT_EQ(pending_.size(), 0);
  }
}

}  // namespace
}  // namespace smddp
