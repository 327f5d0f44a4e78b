// SPDX-License-Identifier: Apache-2.0
// The engine with ranks as threads: every process of a job is an Engine here.
#include "collective/engine.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/collective/job.h"

namespace smddp {
namespace {

class EngineTest : public testing::TestWithParam<Layout> {};

TEST_P(EngineTest, SumsTreesOfManySizes) {
  Job job(GetParam());
  const auto signature_counts = std::vector<std::vector<size_t>>{
      {1}, {0}, {3, 0, 5}, {1023}, {1024, 1}, {40'000}, {17, 30'011, 4096, 2}};
  const int ranks = job.processes() * job.devices();
  job.EachProcess([&](int p) {
    for (size_t c = 0; c < signature_counts.size(); ++c) {
      const auto& counts = signature_counts[c];
      OpInstance op = MakeOp(c);
      const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, counts);
      for (int64_t run = 0; run < 3; ++run) {
        Buffers<float> buffers(job.devices(), counts);
        for (int d = 0; d < job.devices(); ++d) {
          for (auto& tensor : buffers.in[d]) {
            for (size_t e = 0; e < tensor.size(); ++e) {
              tensor[e] = static_cast<float>(e % 100) + p * job.devices() + d + run;
            }
          }
        }
        Submit(job, p, op, run, signature, buffers);
        buffers.left.wait();
        for (int d = 0; d < job.devices(); ++d) {
          ASSERT_TRUE(buffers.status[d].ok()) << buffers.status[d].message();
          for (auto& tensor : buffers.out[d]) {
            for (size_t e = 0; e < tensor.size(); ++e) {
              const float want =
                  static_cast<float>(ranks * (e % 100 + run) + ranks * (ranks - 1) / 2);
              ASSERT_EQ(tensor[e], want) << "process " << p << " element " << e;
            }
          }
        }
      }
    }
  });
}

// Independent collectives, each process in its own order, all in flight at once.
TEST_P(EngineTest, MatchesByKeyAndNotByArrival) {
  Job job(GetParam());
  constexpr size_t kOps = 150;  // More than the order log holds.
  const int ranks = job.processes() * job.devices();
  job.EachProcess([&](int p) {
    std::vector<OpInstance> ops;
    std::vector<std::shared_ptr<const Signature>> signatures;
    std::vector<std::unique_ptr<Buffers<int32_t>>> buffers;
    for (size_t i = 0; i < kOps; ++i) {
      ops.push_back(MakeOp(i));
      const std::vector<size_t> counts = {i % 7 == 0 ? 5000 + i : 1 + i};
      signatures.push_back(MakeSignature(ReduceOp::kSum, DType::kS32, counts));
      buffers.push_back(std::make_unique<Buffers<int32_t>>(job.devices(), counts));
      for (auto& device : buffers[i]->in) {
        std::fill(device[0].begin(), device[0].end(), static_cast<int32_t>(i));
      }
    }
    std::vector<size_t> order(kOps);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<unsigned>(p)));
    for (size_t i : order) Submit(job, p, ops[i], 1, signatures[i], *buffers[i]);
    for (size_t i = 0; i < kOps; ++i) {
      buffers[i]->left.wait();
      for (int d = 0; d < job.devices(); ++d) {
        ASSERT_TRUE(buffers[i]->status[d].ok()) << buffers[i]->status[d].message();
        for (int32_t value : buffers[i]->out[d][0]) {
          ASSERT_EQ(value, static_cast<int32_t>(i) * ranks);
        }
      }
    }
  });
  for (int p = 0; p < job.processes(); ++p) {
    EXPECT_TRUE(job.engine(p).Drain(5));
    EXPECT_EQ(job.engine(p).stats().calls, kOps);
  }
}

TEST_P(EngineTest, RoundsNarrowFloatsOnce) {
  Job job(GetParam());
  job.EachProcess([&](int p) {
    OpInstance op = MakeOp(1);
    const std::vector<size_t> counts = {9000};
    const auto signature = MakeSignature(ReduceOp::kSum, DType::kBF16, counts);
    Buffers<uint16_t> buffers(job.devices(), counts);
    for (int d = 0; d < job.devices(); ++d) {
      // 256 on the first rank, 1 on the others: narrow sums would stay at 256.
      const uint16_t value = p == 0 && d == 0 ? 0x4380 : 0x3f80;
      std::fill(buffers.in[d][0].begin(), buffers.in[d][0].end(), value);
    }
    Submit(job, p, op, 1, signature, buffers);
    buffers.left.wait();
    const float exact = 256.0f + (job.processes() * job.devices() - 1);
    uint32_t bits;
    std::memcpy(&bits, &exact, sizeof(bits));
    const auto want = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    for (int d = 0; d < job.devices(); ++d) {
      for (uint16_t value : buffers.out[d][0]) ASSERT_EQ(value, want);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Layouts, EngineTest,
                         testing::Values(Layout{1, 1}, Layout{1, 8}, Layout{2, 1},
                                         Layout{2, 4}, Layout{4, 2}, Layout{2, 1, 2},
                                         Layout{4, 1, 4}, Layout{4, 2, 2},
                                         Layout{5, 1, 2}, Layout{3, 2, 3, 2}),
                         [](const auto& info) {
                           const Layout& layout = info.param;
                           return std::to_string(layout.processes) + "x" +
                                  std::to_string(layout.devices) + "on" +
                                  std::to_string(layout.hosts) + "by" +
                                  std::to_string(layout.lanes);
                         });

// --- failures -----------------------------------------------------------------------

TEST(EngineFailureTest, ALostPeerIsNamed) {
  Job job({2, 2});
  const std::vector<size_t> counts = {100'000};
  OpInstance op = MakeOp(1);
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, counts);
  Buffers<float> buffers(2, counts);
  Submit(job, 0, op, 1, signature, buffers);
  job.Kill(1);
  ExpectError(buffers, StatusCode::kPeerLost, Words{"rank 1", "psum #1", "400000 bytes"});
  // Later calls fail at once.
  Buffers<float> later(2, counts);
  Submit(job, 0, op, 2, signature, later);
  ExpectError(later, StatusCode::kPeerLost, Words{"rank 1"});
}

TEST(EngineFailureTest, APeerThatLeavesAfterItsLastStepBreaksNothing) {
  Job job({2, 1});
  const std::vector<size_t> counts = {200'000};
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, counts);
  job.EachProcess([&](int p) {
    OpInstance op = MakeOp(1);
    Buffers<float> buffers(1, counts);
    Submit(job, p, op, 1, signature, buffers);
    buffers.left.wait();
    EXPECT_TRUE(buffers.status[0].ok()) << buffers.status[0].message();
    if (p == 1) job.engine(1).Disconnect("done");
  });
  OpInstance op = MakeOp(1);
  Buffers<float> more(1, counts);
  Submit(job, 0, op, 2, signature, more);
  ExpectError(more, StatusCode::kPeerLost, Words{"rank 1", "left the job: done"});
}

TEST(EngineFailureTest, UnlikeShapesAreShownOnBothSides) {
  Job job({2, 1});
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  std::vector<OpInstance> ops(2, MakeOp(1));
  for (int p = 0; p < 2; ++p) {
    const std::vector<size_t> counts = {p == 0 ? size_t{6} : size_t{4}};
    buffers.push_back(std::make_unique<Buffers<float>>(1, counts));
    Submit(job, p, ops[static_cast<size_t>(p)], 1,
           MakeSignature(ReduceOp::kSum, DType::kF32, counts), *buffers.back());
  }
  for (auto& each : buffers) {
    each->left.wait();
    EXPECT_FALSE(each->status[0].ok());
    for (const char* word : {"float32[6]", "float32[4]", "rank 0", "rank 1"}) {
      EXPECT_NE(each->status[0].message().find(word), std::string::npos)
          << each->status[0].message();
    }
  }
}

// Rank 1 reduces over itself where rank 0 reduces over both, and goes on. Its next
// step must not be paired with the one that rank 0 waits in.
TEST(EngineFailureTest, AGroupInsideOneProcessIsNoticedAtTheNextStep) {
  Job job({2, 1});
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, {4});
  std::vector<OpInstance> ops(2, MakeOp(1));
  Buffers<float> of_rank_0(1, {4});
  Submit(job, 0, ops[0], 1, signature, of_rank_0);
  const auto alone =
      std::make_shared<const Group>(std::vector<Member>{{Job::Device(1, 0), 1}}, 1);
  Buffers<float> inside(1, {4});
  Participant participant;
  participant.inputs = {inside.in[0][0].data()};
  participant.outputs = {inside.out[0][0].data()};
  participant.done = [&](const Status& status) {
    inside.status[0] = status;
    inside.left.count_down();
  };
  job.engine(1).Submit(ops[1], 1, Job::Device(1, 0), alone, signature,
                       std::move(participant));
  inside.left.wait();
  EXPECT_TRUE(inside.status[0].ok());
  Buffers<float> next(1, {4});
  Submit(job, 1, ops[1], 2, signature, next);
  for (Buffers<float>* buffers : {&of_rank_0, &next}) {
    buffers->left.wait();
    EXPECT_FALSE(buffers->status[0].ok());
    for (const char* word : {"2 devices of ranks {0, 1}", "1 devices of ranks {1}"}) {
      EXPECT_NE(buffers->status[0].message().find(word), std::string::npos)
          << buffers->status[0].message();
    }
  }
}

TEST(EngineFailureTest, AnAbsentPeerIsNamedAtTheDeadline) {
  Settings settings = SmallSettings();
  settings.timeout_seconds = 0.4;
  Job job({3, 1}, settings);
  const std::vector<size_t> counts = {10};
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, counts);
  std::vector<OpInstance> ops(3, MakeOp(1));
  std::vector<std::unique_ptr<Buffers<float>>> buffers;
  for (int p : {0, 2}) {
    buffers.push_back(std::make_unique<Buffers<float>>(1, counts));
    Submit(job, p, ops[static_cast<size_t>(p)], 1, signature, *buffers.back());
  }
  for (auto& each : buffers) {
    each->left.wait();
    EXPECT_FALSE(each->status[0].ok());
    for (const char* word : {"rank 1", "psum #1", "40 bytes", "step 0"}) {
      EXPECT_NE(each->status[0].message().find(word), std::string::npos)
          << each->status[0].message();
    }
  }
}

TEST(EngineFailureTest, ADeviceThatNeverComesIsNamed) {
  Settings settings = SmallSettings();
  settings.timeout_seconds = 0.2;
  Engine engine(settings);
  const auto group =
      std::make_shared<const Group>(std::vector<Member>{{0, 0}, {1, 0}}, 0);
  OpInstance op = MakeOp(1);
  Buffers<float> buffers(1, {4});
  Participant participant;
  participant.inputs = {buffers.in[0][0].data()};
  participant.outputs = {buffers.out[0][0].data()};
  participant.done = [&](const Status& status) {
    buffers.status[0] = status;
    buffers.left.count_down();
  };
  engine.Submit(op, 1, 0, group, MakeSignature(ReduceOp::kSum, DType::kF32, {4}),
                std::move(participant));
  ExpectError(buffers, StatusCode::kDeadline, Words{"devices {1}", "psum #1"});
}

TEST(EngineFailureTest, AbortEndsAWaitOnBothSides) {
  Job job({2, 1});
  const auto signature = MakeSignature(ReduceOp::kSum, DType::kF32, {4});
  OpInstance op = MakeOp(1);
  Buffers<float> first(1, {4});
  Submit(job, 0, op, 1, signature, first);
  job.engine(0).Abort("interrupted");
  ExpectError(first, StatusCode::kAborted, Words{"interrupted"});
}

// Handlers may block in XLA's own collectives until every device was told.
TEST(CompletionsTest, GrowWhileTasksBlock) {
  constexpr int kTasks = 20;
  Completions completions(1, 64);
  std::latch all(kTasks);
  std::latch done(kTasks);
  for (int i = 0; i < kTasks; ++i) {
    completions.Post([&] {
      all.arrive_and_wait();
      done.count_down();
    });
  }
  done.wait();
  SUCCEED();
}

TEST(WorkersTest, EveryTaskRunsOnce) {
  Workers workers(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::atomic<int>> runs(17);
    workers.ParallelFor(17, [&](size_t i) { ++runs[i]; });
    for (auto& count : runs) ASSERT_EQ(count.load(), 1);
    std::latch done(1);
    std::atomic<int> sum{0};
    workers.Start(
        5, [&](size_t i) { sum += static_cast<int>(i); }, [&] { done.count_down(); });
    done.wait();
    ASSERT_EQ(sum.load(), 10);
  }
}

}  // namespace
}  // namespace smddp
