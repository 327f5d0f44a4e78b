// SPDX-License-Identifier: Apache-2.0
// A reducer inside a worker.
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <tuple>
#include <vector>

#include "reducer/reducer.h"
#include "tests/reducer/fake_transport.h"
#include "tests/reducer/stream_user.h"

namespace smddp {
namespace {

using testing::Bytes;
using testing::BytesOf;
using testing::FakeTransport;
using testing::StreamUser;
using testing::UsersOf;

constexpr size_t kPlenty = size_t{64} << 20;

using Done = std::tuple<uint64_t, uint32_t, uint64_t>;

class LocalTest : public ::testing::Test {
 protected:
  LocalTest() {
    for (const StreamUser& user : users_) {
      EXPECT_TRUE((user.shape.host == 0 ? OpenLocal() : user.Open(reducer_)).ok());
    }
  }
  Status OpenLocal() {
    return reducer_.OpenLocal(users_[0].OpenFrame(), users_[0].shape);
  }
  Status Contribute(uint64_t segment, const Bytes& in, Bytes* out) {
    return reducer_.Contribute(users_[0].PushFrame(segment, in),
                               std::as_bytes(std::span(in)),
                               out ? reinterpret_cast<std::byte*>(out->data()) : nullptr);
  }

  FakeTransport transport_;
  std::vector<Done> done_;
  std::function<void()> then_;
  Reducer reducer_{kPlenty, transport_, [this](uint64_t s, uint32_t e, uint64_t segment) {
                     done_.emplace_back(s, e, segment);
                     if (then_) then_();
                   }};
  std::vector<StreamUser> users_ = UsersOf(7, 2);
  const Bytes three_ = BytesOf<float>({3});
};

TEST_F(LocalTest, TheLocalWorkerAddsAndReadsInPlace) {
  const Bytes in = BytesOf<float>({1, 2});
  Bytes out(in.size());
  ASSERT_OK(Contribute(0, in, &out));
  EXPECT_TRUE(done_.empty());
  ASSERT_OK(users_[1].Push(reducer_, 0, BytesOf<float>({10, 20})));
  EXPECT_EQ(done_, (std::vector<Done>{{7, 0, 0}}));
  EXPECT_EQ(out, BytesOf<float>({11, 22}));
  EXPECT_EQ(transport_.Take(11)->payload, out);
  EXPECT_EQ(transport_.waiting(), 0u);
  // One contribution and the sum.
  EXPECT_EQ(reducer_.counters().staging_bytes, 2u << 12);
}

TEST_F(LocalTest, TheLastMayBeTheLocalOneAndNeedNothing) {
  ASSERT_OK(users_[1].Push(reducer_, 0, three_));
  ASSERT_OK(Contribute(0, three_, nullptr));
  EXPECT_EQ(done_.size(), 1u);
  EXPECT_EQ(transport_.Take(11)->payload, BytesOf<float>({6}));
}

TEST_F(LocalTest, OnlyTheLocalWorkerNeedsTheSum) {
  FrameHeader push = users_[1].PushFrame(0, three_);
  push.value = kPushNoResult;
  ASSERT_OK(users_[1].Push(reducer_, push, three_));
  Bytes out(4);
  ASSERT_OK(Contribute(0, three_, &out));
  EXPECT_EQ(out, BytesOf<float>({6}));
  EXPECT_EQ(transport_.Take(11)->payload, Bytes());
  EXPECT_EQ(reducer_.counters().staging_bytes, 1u << 12);
}

TEST_F(LocalTest, ANewEpochLetsGoOfTheLocalMemory) {
  auto in = std::make_unique<Bytes>(three_);
  auto out = std::make_unique<Bytes>(4);
  ASSERT_OK(Contribute(0, *in, out.get()));
  users_[1].epoch = 1;
  ASSERT_OK(users_[1].Open(reducer_));
  in.reset();
  out.reset();
  // Ours has not heard of it.
  ASSERT_OK(Contribute(1, three_, nullptr));
  EXPECT_EQ(reducer_.counters().stale, 1u);
  ASSERT_OK(users_[1].Push(reducer_, 0, three_));
  reducer_.CloseLocal(7);
  users_[0].epoch = 1;
  ASSERT_OK(OpenLocal());
  Bytes again(4);
  ASSERT_OK(Contribute(0, three_, &again));
  EXPECT_EQ(again, BytesOf<float>({6}));
  EXPECT_EQ(done_, (std::vector<Done>{{7, 1, 0}}));
}

TEST_F(LocalTest, ClosingLetsGoOfTheLocalMemory) {
  auto in = std::make_unique<Bytes>(three_);
  auto out = std::make_unique<Bytes>(4);
  Bytes sum(4);
  ASSERT_OK(Contribute(0, three_, &sum));
  ASSERT_OK(users_[1].Push(reducer_, 0, three_));
  ASSERT_OK(Contribute(1, *in, out.get()));
  reducer_.CloseLocal(7);
  in.reset();
  out.reset();
  ASSERT_OK(users_[1].Push(reducer_, 1, three_));
  EXPECT_EQ(done_.size(), 1u);
  // What was summed is still sent.
  EXPECT_EQ(transport_.Take(11)->payload, sum);
  reducer_.PeerLost(11);
  EXPECT_EQ(reducer_.counters().staging_bytes, 0u);
}

TEST_F(LocalTest, DoneMayContributeAgainOrClose) {
  Bytes out(4);
  then_ = [&] {
    then_ = [&] { reducer_.CloseLocal(7); };
    reducer_.PeerLost(11);
    EXPECT_TRUE(OpenLocal().code() == StatusCode::kMismatch);
    EXPECT_TRUE(Contribute(4, three_, &out).ok());
    reducer_.CloseLocal(7);
  };
  ASSERT_OK(users_[1].Push(reducer_, 0, three_));
  ASSERT_OK(Contribute(0, three_, &out));
  EXPECT_EQ(reducer_.counters().staging_bytes, 0u);
}

TEST_F(LocalTest, TheLocalWorkersMemoryIsNotCounted) {
  FakeTransport transport;
  Reducer reducer(2 * 4 * (4096 + 64), transport, [](uint64_t, uint32_t, uint64_t) {});
  ASSERT_OK(users_[1].Open(reducer));
  ASSERT_OK(reducer.OpenLocal(users_[0].OpenFrame(), users_[0].shape));
}

}  // namespace
}  // namespace smddp
