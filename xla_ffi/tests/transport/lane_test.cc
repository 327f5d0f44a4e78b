// SPDX-License-Identifier: Apache-2.0
#include "transport/lane.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/transport/recorder.h"

namespace smddp {
namespace {

constexpr int kPeer = 1;

bool Eventually(const std::function<bool()>& done) {
  const Deadline deadline = Deadline::After(20);
  while (!done()) {
    if (deadline.Passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

// A lane whose receiver answers every push with its payload as the result.
struct Echo {
  explicit Echo(std::function<void()> after)
      : lane("test-lane", MakeTransport(), std::move(after), [](const Status&) {}) {
    recorder.received = [this](int peer, const FrameHeader& header) {
      if (header.kind != FrameKind::kPush) return Status();
      FrameHeader result = header;
      result.kind = FrameKind::kResult;
      lane.transport().SendCopy(peer, result, Bytes(recorder.frames.back().bytes));
      return Status();
    };
  }
  std::unique_ptr<Transport> MakeTransport() {
    return std::move(*MakeTcpTransport({}, recorder));
  }

  Recorder recorder;
  Lane lane;
};

TEST(LaneTest, MovesFramesOfManyThreadsAndTellsSo) {
  constexpr unsigned kThreads = 3;
  constexpr unsigned kFrames = 200;
  std::atomic<size_t> results{0};
  Echo far([] {});
  Echo* near_end = nullptr;
  Echo near([&] {
    // Without the lane's lock: this would wait for ever otherwise.
    auto lock = near_end->lane.Lock();
    results = near_end->recorder.frames.size();
  });
  near_end = &near;
  auto [a, b] = LoopbackPair();
  near.lane.transport().AddPeer(kPeer, std::move(a));
  far.lane.transport().AddPeer(kPeer, std::move(b));
  near.lane.Start();
  far.lane.Start();
  std::vector<std::string> payloads;
  for (unsigned i = 0; i < kThreads; ++i) payloads.push_back(Pattern(3000 + i, i));
  {
    std::vector<std::jthread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (uint64_t i = 0; i < kFrames; ++i) {
          FrameHeader header = Header(FrameKind::kPush, t, i);
          header.payload = static_cast<uint32_t>(payloads[t].size());
          auto lock = near.lane.Lock();
          near.lane.transport().Send(kPeer, header, Bytes(payloads[t]));
        }
      });
    }
  }
  EXPECT_TRUE(Eventually([&] { return results == kThreads * kFrames; }));
  EXPECT_TRUE(near.lane.Flush(5));
  near.lane.Stop();
  near.lane.Stop();
  for (const auto& frame : near.recorder.frames) {
    EXPECT_EQ(frame.header.kind, FrameKind::kResult);
    EXPECT_TRUE(frame.bytes == payloads[frame.header.stream]);
  }
}

TEST(LaneTest, FlushGivesUpOnAPeerThatDoesNotRead) {
  Echo near([] {});
  auto [a, b] = LoopbackPair(16384);
  near.lane.transport().AddPeer(kPeer, std::move(a));
  near.lane.Start();
  const std::string payload = Pattern(4 << 20, 1);
  FrameHeader header = Header(FrameKind::kPush);
  header.payload = static_cast<uint32_t>(payload.size());
  {
    auto lock = near.lane.Lock();
    near.lane.transport().Send(kPeer, header, Bytes(payload));
  }
  EXPECT_FALSE(near.lane.Flush(0.05));
}

TEST(LaneTest, ReportsWhatEndedItsThread) {
  Recorder recorder;
  std::atomic<bool> failed{false};
  Status why;
  Lane lane(
      "test-lane", std::move(*MakeTcpTransport({}, recorder)),
      [] { throw std::runtime_error("after broke"); },
      [&](const Status& status) {
        why = status;
        failed = true;
      });
  auto [a, b] = LoopbackPair();
  lane.transport().AddPeer(kPeer, std::move(a));
  lane.Start();
  b.Reset();  // Lost moves something, too.
  ASSERT_TRUE(Eventually([&] { return failed.load(); }));
  EXPECT_NE(why.message().find("after broke"), std::string::npos);
}

}  // namespace
}  // namespace smddp
