// SPDX-License-Identifier: Apache-2.0
// What the TCP transport does when nothing comes.
#include <gtest/gtest.h>

#include <chrono>
#include <thread>
#include <utility>

#include "base/deadline.h"
#include "tests/transport/recorder.h"
#include "transport/tcp_transport.h"

namespace smddp {
namespace {

constexpr int kRight = 7;
constexpr int kLeft = 3;

TEST(SilenceTest, IsNoticedAndHeartbeatsPreventIt) {
  End mute(0.4);
  auto [a, b] = LoopbackPair();
  mute.transport->AddPeer(kRight, std::move(a));
  const Deadline soon = Deadline::After(0.2);
  ASSERT_TRUE(Drive({&mute}, [&] { return !mute.recorder.lost.empty(); }));
  EXPECT_TRUE(soon.Passed());
  EXPECT_EQ(mute.recorder.lost[kRight],
            "has been silent for 0.4 s: its process is frozen or its network is cut");

  End left(1.0);
  End right(1.0);
  auto [c, d] = LoopbackPair();
  left.transport->AddPeer(kRight, std::move(c));
  right.transport->AddPeer(kLeft, std::move(d));
  const Deadline later = Deadline::After(2.5);
  ASSERT_TRUE(Drive({&left, &right}, [&] { return later.Passed(); }));
  EXPECT_TRUE(left.recorder.lost.empty());
  EXPECT_TRUE(right.recorder.lost.empty());
  EXPECT_TRUE(left.frames().empty());  // Heartbeats are the transport's own affair.
  EXPECT_GE(left.transport->counters().frames_received, 3u);
}

TEST(SilenceTest, WhoWasStoppedItselfGivesOthersTime) {
  End left(0.5);
  End right(0.5);
  auto [a, b] = LoopbackPair();
  left.transport->AddPeer(kRight, std::move(a));
  right.transport->AddPeer(kLeft, std::move(b));
  left.transport->Progress();
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  left.transport->Progress();
  EXPECT_TRUE(left.recorder.lost.empty());
}

TEST(WaitTest, EndsByAWakeAndByAFrame) {
  End left;
  End right;
  auto [a, b] = LoopbackPair();
  left.transport->AddPeer(kRight, std::move(a));
  right.transport->AddPeer(kLeft, std::move(b));
  const Deadline deadline = Deadline::After(3);
  std::thread waker([&] { left.transport->Wake(); });
  left.transport->Wait(3);
  waker.join();
  left.transport->Progress();
  right.transport->SendCopy(kLeft, Header(FrameKind::kNotice), {});
  left.transport->Wait(3);
  EXPECT_FALSE(deadline.Passed());
}

}  // namespace
}  // namespace smddp
