// SPDX-License-Identifier: Apache-2.0
#include "reducer/reducer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <tuple>
#include <vector>

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

class ReducerTest : public ::testing::Test {
 protected:
  void OpenAll(const std::vector<StreamUser>& users) {
    for (const StreamUser& user : users) ASSERT_OK(user.Open(reducer_));
  }
  std::vector<float> Floats(const FakeTransport::Frame& frame) {
    std::vector<float> values(frame.payload.size() / sizeof(float));
    std::memcpy(values.data(), frame.payload.data(), frame.payload.size());
    return values;
  }

  FakeTransport transport_;
  Reducer reducer_{kPlenty, transport_, {}};
};

TEST_F(ReducerTest, EverybodyGetsTheSum) {
  auto users = UsersOf(7, 3);
  OpenAll(users);
  for (const StreamUser& user : users) {
    EXPECT_EQ(transport_.waiting(), 0u);
    ASSERT_OK(user.Push(reducer_, 0, BytesOf<float>({1, 2, float(user.peer)})));
  }
  ASSERT_EQ(transport_.waiting(), 3u);
  // Reducer 1 begins with host 1.
  for (int peer : {11, 12, 10}) {
    const auto frame = transport_.Take();
    EXPECT_EQ(frame->peer, peer);
    EXPECT_EQ(frame->header.kind, FrameKind::kResult);
    EXPECT_EQ(frame->header.stream, 7u);
    EXPECT_EQ(frame->header.from, 1u);
    EXPECT_EQ(frame->header.segment, 0u);
    EXPECT_EQ(frame->header.in, DType::kF32);
    EXPECT_EQ(Floats(*frame), (std::vector<float>{3, 6, 33}));
  }
  EXPECT_EQ(reducer_.counters().segments, 1u);
  EXPECT_EQ(reducer_.counters().bytes_summed, 36u);
  EXPECT_GT(reducer_.counters().seconds, 0);
  EXPECT_EQ(reducer_.counters().staging_bytes, 4u << 12);
}

TEST_F(ReducerTest, TheOrderOfArrivalDoesNotMatter) {
  std::mt19937_64 random(1);
  constexpr size_t kCount = 301;
  auto users = UsersOf(7, 5);
  OpenAll(users);
  const std::vector<std::tuple<ReduceOp, DType, DType>> kinds = {
      {ReduceOp::kSum, DType::kF32, DType::kF32},
      {ReduceOp::kSum, DType::kBF16, DType::kBF16},
      {ReduceOp::kSum, DType::kF16, DType::kF16},
      {ReduceOp::kSum, DType::kF32, DType::kBF16},
      {ReduceOp::kSum, DType::kBF16, DType::kF32},
      {ReduceOp::kSum, DType::kS8, DType::kS8},
      {ReduceOp::kSum, DType::kC64, DType::kC64},
      {ReduceOp::kMax, DType::kF64, DType::kF64},
      {ReduceOp::kMin, DType::kU16, DType::kU16},
  };
  uint64_t segment = 0;
  for (int round = 0; round < 10; ++round) {
    for (const auto& [op, in, out] : kinds) {
      std::vector<Bytes> inputs;
      for (size_t i = 0; i < users.size(); ++i) {
        inputs.push_back(testing::RandomArray(in, kCount, random));
      }
      std::vector<size_t> order(users.size());
      std::iota(order.begin(), order.end(), size_t{0});
      std::shuffle(order.begin(), order.end(), random);
      for (const size_t i : order) {
        ASSERT_OK(users[i].Push(
            reducer_, users[i].PushFrame(segment, op, in, out, inputs[i].size()),
            inputs[i]));
      }
      const Bytes wanted = testing::Expected(op, in, out, inputs, kCount);
      while (const auto frame = transport_.Take()) {
        EXPECT_EQ(frame->header.in, out);
        ASSERT_EQ(frame->payload.size(), wanted.size());
        ASSERT_EQ(testing::FirstDifference(out, frame->payload, wanted, kCount), kCount);
      }
      ++segment;
    }
  }
  EXPECT_EQ(reducer_.counters().segments, segment);
}

TEST_F(ReducerTest, SumsOfHalvesAreWide) {
  auto users = UsersOf(7, 8);
  OpenAll(users);
  const auto sum = [&](uint64_t segment, DType dtype, float first) {
    Bytes bytes(2);
    for (const StreamUser& user : users) {
      testing::PutAs<float>(dtype, bytes, 0, user.shape.host == 0 ? first : 1);
      const FrameHeader push = user.PushFrame(segment, ReduceOp::kSum, dtype, dtype, 2);
      EXPECT_TRUE(user.Push(reducer_, push, bytes).ok());
    }
    const auto frame = transport_.Take(10);
    return testing::GetAs<float>(dtype, frame->payload, 0);
  };
  EXPECT_EQ(sum(0, DType::kBF16, 256), 264);
  EXPECT_EQ(sum(1, DType::kF16, 2048), 2056);
}

TEST_F(ReducerTest, SegmentsMayBeMissingAndOvertake) {
  auto users = UsersOf(7, 2);
  OpenAll(users);
  // Another reducer sums segments 0 and 2.
  ASSERT_OK(users[0].Push(reducer_, 1, BytesOf<float>({1})));
  ASSERT_OK(users[0].Push(reducer_, 3, BytesOf<float>({3})));
  ASSERT_OK(users[1].Push(reducer_, 3, BytesOf<float>({30})));
  EXPECT_EQ(Floats(*transport_.Take(10)), (std::vector<float>{33}));
  ASSERT_OK(users[1].Push(reducer_, 1, BytesOf<float>({10})));
  transport_.Take(11);
  EXPECT_EQ(Floats(*transport_.Take(10)), (std::vector<float>{11}));
}

TEST_F(ReducerTest, SomeHaveNothingToAddAndSomeNeedNoSum) {
  auto users = UsersOf(7, 3);
  OpenAll(users);
  const Bytes data = BytesOf<uint32_t>({5, 6});
  FrameHeader gives =
      users[1].PushFrame(0, ReduceOp::kSum, DType::kU32, DType::kU32, data.size());
  gives.value = kPushNoResult;
  FrameHeader takes = gives;
  takes.payload = 0;
  takes.value = kPushEmpty;
  for (size_t i : {0, 2}) {
    takes.from = users[i].shape.host;
    ASSERT_OK(users[i].Push(reducer_, takes, {}));
    if (i == 0) {
      ASSERT_OK(users[1].Push(reducer_, gives, data));
    }
  }
  EXPECT_EQ(transport_.Take(10)->payload, data);
  EXPECT_EQ(transport_.Take(11)->payload, Bytes());
  EXPECT_EQ(transport_.Take(12)->payload, data);
  EXPECT_EQ(reducer_.counters().bytes_summed, 8u);
}

TEST_F(ReducerTest, ANewEpochVoidsWhatWasUnderWay) {
  auto users = UsersOf(7, 2);
  OpenAll(users);
  const Bytes old = BytesOf<float>({100});
  ASSERT_OK(users[0].Push(reducer_, 0, old));
  const FrameHeader late = users[1].PushFrame(0, old);
  const Result<std::byte*> where = reducer_.Accept(11, late);
  ASSERT_TRUE(where.ok());

  users[0].epoch = 2;
  users[0].shape.window = 8;  // The shape may change.
  users[0].shape.slot_bytes = 8;
  ASSERT_OK(users[0].Open(reducer_));
  EXPECT_EQ(transport_.forgotten(), std::vector<uint64_t>{7});
  ASSERT_OK(users[0].Push(reducer_, 0, BytesOf<float>({1})));

  // What is on its way from a host that has not heard of it.
  const FrameHeader stale = users[1].PushFrame(1, old);
  const Result<std::byte*> nowhere = reducer_.Accept(11, stale);
  ASSERT_TRUE(nowhere.ok());
  EXPECT_EQ(*nowhere, nullptr);
  ASSERT_OK(users[1].Open(reducer_));
  EXPECT_EQ(reducer_.counters().stale, 2u);

  users[1].epoch = 2;
  EXPECT_REFUSED(users[1].Push(reducer_, 0, old), "before this epoch is opened");
  users[1].shape = users[0].shape;
  users[1].shape.host = 1;
  ASSERT_OK(users[1].Open(reducer_));
  ASSERT_OK(users[1].Push(reducer_, 0, BytesOf<float>({2})));
  const auto frame = transport_.Take(11);
  EXPECT_EQ(frame->header.epoch, 2u);
  EXPECT_EQ(Floats(*frame), (std::vector<float>{3}));
  EXPECT_EQ(reducer_.counters().segments, 1u);
}

TEST_F(ReducerTest, PushesThatNobodyWaitsForAreThrownAway) {
  auto users = UsersOf(7, 2);
  const Bytes one = BytesOf<float>({1});
  // The reducer was restarted.
  ASSERT_OK(users[0].Push(reducer_, 3, one));
  ASSERT_OK(users[0].Open(reducer_));
  ASSERT_OK(users[1].Push(reducer_, 3, one));
  // The connection was lost, and is back.
  reducer_.PeerLost(10);
  ASSERT_OK(users[1].Open(reducer_));
  ASSERT_OK(users[0].Push(reducer_, 3, one));
  EXPECT_EQ(reducer_.counters().stale, 3u);
  EXPECT_EQ(reducer_.counters().staging_bytes, 0u);
}

TEST_F(ReducerTest, AHostMayBeLateByAWholeEpoch) {
  auto users = UsersOf(7, 2);
  users[0].epoch = 1;
  ASSERT_OK(users[0].Open(reducer_));
  ASSERT_OK(users[1].Open(reducer_));
  ASSERT_OK(users[1].Push(reducer_, 0, BytesOf<float>({1})));
  EXPECT_EQ(reducer_.counters().stale, 2u);
}

TEST_F(ReducerTest, AnEpochBeginsWhereItSays) {
  auto users = UsersOf(7, 2);
  for (StreamUser& user : users) user.shape.first = 5;
  OpenAll(users);
  EXPECT_REFUSED(users[0].Push(reducer_, 4, BytesOf<float>({1})), "segment 4");
  for (StreamUser& user : users) {
    ASSERT_OK(user.Push(reducer_, 5, BytesOf<float>({1})));
  }
  EXPECT_EQ(transport_.waiting(), 2u);
  // A slot can't go back.
  EXPECT_REFUSED(users[0].Push(reducer_, 5, BytesOf<float>({1})), "it is over");
}

TEST_F(ReducerTest, OpeningIsChecked) {
  auto users = UsersOf(7, 3);
  ASSERT_OK(users[0].Open(reducer_));
  EXPECT_REFUSED(users[0].Open(reducer_), "for a second time");

  StreamUser other = users[1];
  other.shape.host = 0;
  EXPECT_REFUSED(other.Open(reducer_), "as host 0, which another process is");
  other.epoch = 1;
  EXPECT_REFUSED(other.Open(reducer_), "which another process is");
  StreamUser twice = users[0];
  twice.shape.host = 1;
  EXPECT_REFUSED(twice.Open(reducer_), "as host 1, and as host 0");

  const auto refused = [&](auto change, const char* part) {
    StreamUser user = users[1];
    change(user.shape);
    EXPECT_REFUSED(user.Open(reducer_), part);
  };
  refused([](StreamShape& s) { s.hosts = 4; }, "for 4 hosts; it has 3");
  refused([](StreamShape& s) { s.window = 5; }, "5 segments");
  refused([](StreamShape& s) { s.slot_bytes = 77; }, "77 bytes");
  refused([](StreamShape& s) { s.first = 9; }, "from segment 9 on");
  refused([](StreamShape& s) { s.reducer = 2; }, "as reducer 2");
  ASSERT_OK(users[1].Open(reducer_));
}

TEST_F(ReducerTest, PushesAreChecked) {
  auto users = UsersOf(7, 2);
  const Bytes one = BytesOf<float>({1});
  OpenAll(users);

  const auto refused = [&](auto change, const char* part) {
    FrameHeader push = users[1].PushFrame(0, one);
    change(push);
    EXPECT_REFUSED(reducer_.Accept(11, push).status(), part);
  };
  refused([](FrameHeader& p) { p.from = 0; }, "a push as host 0, which another");
  refused([](FrameHeader& p) { p.from = 2; }, "a push as host 2 of 2");
  refused([](FrameHeader& p) { p.epoch = 1; }, "before this epoch is opened");
  refused([](FrameHeader& p) { p.value = 4; }, "unknown flags 4");
  refused([](FrameHeader& p) { p.payload = 0; }, "0 bytes of float32");
  refused([](FrameHeader& p) { p.payload = 6; }, "6 bytes of float32");
  refused([](FrameHeader& p) { p.payload = 4100; }, "1025 elements");
  refused([](FrameHeader& p) { p.out = DType::kF64; }, "no sum of float32 to float64");
  refused([](FrameHeader& p) { p.value = kPushEmpty; }, "nothing to add, but a payload");
  refused(
      [](FrameHeader& p) {
        p.value = kPushEmpty;
        p.payload = 0;
      },
      "only sums of integers");
  refused(
      [](FrameHeader& p) {
        p.op = ReduceOp::kMax;
        p.in = p.out = DType::kC64;
      },
      "no max of complex64");
  // The sum would not fit.
  refused(
      [](FrameHeader& p) {
        p.in = DType::kBF16;
        p.payload = 4096;
      },
      "2048 elements");
  EXPECT_REFUSED(reducer_.Received(11, users[1].PushFrame(0, one)), "not accepted");
}

TEST_F(ReducerTest, DisagreementNamesBoth) {
  auto users = UsersOf(7, 2);
  OpenAll(users);
  const Bytes one = BytesOf<float>({1});
  ASSERT_OK(users[0].Push(reducer_, 1, one));
  EXPECT_REFUSED(users[0].Push(reducer_, 1, one), "for a second time");
  EXPECT_REFUSED(users[0].Push(reducer_, 5, one), "segment 1 is not over");
  EXPECT_REFUSED(
      users[1].Push(reducer_, 1, BytesOf<float>({1, 2})),
      "host 1 pushes segment 1 of stream 7: 2 elements, where host 0 pushed 1");
  const FrameHeader max =
      users[1].PushFrame(1, ReduceOp::kMax, DType::kS32, DType::kS32, 4);
  EXPECT_REFUSED(users[1].Push(reducer_, max, one),
                 "max of int32 to int32, where host 0 pushed sum of float32 to float32");
}

TEST_F(ReducerTest, SomebodyMustAddSomething) {
  auto users = UsersOf(7, 2);
  OpenAll(users);
  FrameHeader push = users[0].PushFrame(0, ReduceOp::kSum, DType::kU8, DType::kU8, 0);
  push.value = kPushEmpty;
  ASSERT_OK(users[0].Push(reducer_, push, {}));
  push.from = 1;
  EXPECT_REFUSED(users[1].Push(reducer_, push, {}), "no host has anything to add");
}

TEST_F(ReducerTest, StreamsGoWithTheirLastHost) {
  auto users = UsersOf(7, 2);
  OpenAll(users);
  const Bytes one = BytesOf<float>({1});
  // A host that leaves has pushed all that the others need.
  ASSERT_OK(users[0].Push(reducer_, 0, one));
  reducer_.PeerLost(10);
  ASSERT_OK(users[1].Push(reducer_, 0, one));
  EXPECT_FALSE(transport_.Take(10).has_value());
  EXPECT_EQ(Floats(*transport_.Take(11)), (std::vector<float>{2}));
  EXPECT_REFUSED(users[0].Open(reducer_), "for a second time");
  EXPECT_GT(reducer_.counters().staging_bytes, 0u);
  reducer_.PeerLost(10);
  reducer_.PeerLost(11);
  EXPECT_EQ(reducer_.counters().staging_bytes, 0u);
  EXPECT_EQ(transport_.forgotten(), std::vector<uint64_t>{7});
  OpenAll(users);
}

TEST_F(ReducerTest, ALostPeerMayComeBackInANewEpoch) {
  auto users = UsersOf(7, 2);
  OpenAll(users);
  reducer_.PeerLost(10);
  for (StreamUser& user : users) user.epoch = 1;
  OpenAll(users);
  for (const StreamUser& user : users) {
    ASSERT_OK(user.Push(reducer_, 0, BytesOf<float>({1})));
  }
  EXPECT_EQ(transport_.waiting(), 2u);
}

TEST(ReducerStagingTest, WhatCannotFitIsRefused) {
  FakeTransport transport;
  // Two hosts and the sum, four segments, a page each.
  Reducer reducer(3 * 4 * (4096 + 64), transport, {});
  auto users = UsersOf(7, 2);
  ASSERT_OK(users[0].Open(reducer));
  EXPECT_EQ(reducer.counters().staging_bytes, 0u);
  auto others = UsersOf(8, 2);
  EXPECT_REFUSED(others[0].Open(reducer), "12 buffers of 4096 bytes");
  EXPECT_REFUSED(others[0].Open(reducer), "SMDDP_STAGING_BYTES");
  // A new epoch gives back what it had.
  users[0].epoch = 1;
  ASSERT_OK(users[0].Open(reducer));
  users[0].epoch = 2;
  users[0].shape.slot_bytes += 1;
  EXPECT_REFUSED(users[0].Open(reducer), "4097 bytes");
  reducer.PeerLost(10);
  ASSERT_OK(others[0].Open(reducer));
  StreamUser absurd = UsersOf(9, 1)[0];
  absurd.shape.slot_bytes = ~uint64_t{0};
  EXPECT_REFUSED(absurd.Open(reducer), "18446744073709551615 bytes");
}

}  // namespace
}  // namespace smddp
