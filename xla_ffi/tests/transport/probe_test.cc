// SPDX-License-Identifier: Apache-2.0
#include "transport/probe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/transport/recorder.h"

namespace smddp {
namespace {

constexpr int kRight = 7;
constexpr int kLeft = 3;

class ProbeTest : public testing::Test {
 protected:
  ProbeTest() {
    auto [a, b] = LoopbackPair(16384);
    left.transport->AddPeer(kRight, std::move(a));
    right.transport->AddPeer(kLeft, std::move(b));
    for (End* end : {&left, &right}) {
      end->recorder.received = [end](int peer, const FrameHeader& header) {
        if (header.kind == FrameKind::kProbe) {
          AnswerProbe(*end->transport, peer, header);
        }
        return Status();
      };
    }
  }
  static std::vector<uint64_t> Answers(const End& end) {
    std::vector<uint64_t> bursts;
    for (const auto& frame : end.frames()) {
      if (frame.header.kind == FrameKind::kProbed) bursts.push_back(frame.header.value);
    }
    return bursts;
  }

  End left;
  End right;
};

TEST_F(ProbeTest, EachBurstIsAnsweredOnceWhenAllOfItIsThere) {
  size_t sent = 0;
  for (const size_t bytes : {size_t{1}, size_t{100'000}, size_t{3'000'000}}) {
    const uint64_t burst = 40 + bytes;
    SendProbe(*left.transport, kRight, bytes, burst);
    ASSERT_TRUE(Drive({&left, &right}, [&] {
      const auto answers = Answers(left);
      return !answers.empty() && answers.back() == burst;
    }));
    const uint64_t got = right.transport->counters().bytes_received - sent;
    sent += got;
    EXPECT_NEAR(static_cast<double>(got), static_cast<double>(bytes), 4200);
  }
  EXPECT_EQ(Answers(left).size(), 3u);
  EXPECT_TRUE(Answers(right).empty());
}

TEST_F(ProbeTest, AnswersPassTheProbesThatGoTheSameWay) {
  SendProbe(*left.transport, kRight, 4'000'000, 1);
  SendProbe(*right.transport, kLeft, 100'000, 2);
  ASSERT_TRUE(Drive({&left, &right}, [&] { return !Answers(right).empty(); }));
  EXPECT_EQ(Answers(right), std::vector<uint64_t>{2});
  EXPECT_LT(right.transport->counters().bytes_received, 2'000'000u);
}

TEST_F(ProbeTest, APeerThatIsGoneIsNoError) {
  right.transport->DropPeer(kLeft);
  ASSERT_TRUE(Drive({&left}, [&] { return left.recorder.lost.contains(kRight); }));
  SendProbe(*left.transport, kRight, 100'000, 1);
  EXPECT_TRUE(left.transport->Flushed());
}

}  // namespace
}  // namespace smddp
