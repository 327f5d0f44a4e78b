// SPDX-License-Identifier: Apache-2.0
// Many streams at once, with frames in any order and epochs that begin at any time.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "reducer/reducer.h"
#include "tests/reducer/fake_transport.h"
#include "tests/reducer/stream_user.h"

namespace smddp {
namespace {

using testing::Bytes;
using testing::FakeTransport;
using testing::StreamUser;
using testing::UsersOf;

// One stream as its hosts use it; the first of them may live with the reducer.
class StreamModel {
 public:
  StreamModel(uint64_t id, uint32_t hosts, bool local, Reducer& reducer,
              FakeTransport& transport, std::mt19937_64& random)
      : reducer_(reducer), transport_(transport), random_(random), local_(local) {
    for (StreamUser& user : UsersOf(id, hosts)) {
      user.peer = static_cast<int>(100 * id + user.shape.host);
      user.shape.window = kWindow;
      user.shape.slot_bytes = 256;
      hosts_.emplace_back().user = user;
      Open(hosts_.back());
    }
  }

  bool finished() const {
    for (const Host& host : hosts_) {
      if (host.completed < kSegments) return false;
    }
    return true;
  }

  void Step() {
    Host& host = hosts_[random_() % hosts_.size()];
    const uint64_t what = random_() % 100;
    if (what == 0 && epoch_ < 20) {
      BeginEpoch();
    } else if (what < 10 && host.user.epoch < epoch_ && !host.half_pushed) {
      Adopt(host);
    } else if (what < 60) {
      Push(host);
    } else if (!Local(host)) {
      TakeResult(host);
    }
  }

  void LocalDone(uint32_t epoch, uint64_t segment) {
    Host& host = hosts_[0];
    ASSERT_EQ(epoch, host.user.epoch);
    Complete(host, segment, host.outs[segment % kSlots]);
  }

  uint64_t id() const { return hosts_[0].user.stream; }

 private:
  static constexpr uint32_t kWindow = 3;
  static constexpr uint32_t kSlots = 2 * kWindow;
  static constexpr uint64_t kSegments = 40;

  struct HalfPush {
    FrameHeader header;
    std::byte* where;
    size_t forgotten;  // Streams, when it began.
  };
  struct Host {
    StreamUser user;
    uint64_t next = 0;       // To push.
    uint64_t completed = 0;  // Segments before it have their sums.
    std::optional<HalfPush> half_pushed;
    Bytes outs[kSlots];
    Bytes ins[kSlots];
  };

  bool Local(const Host& host) const { return local_ && &host == &hosts_[0]; }

  void Open(Host& host) {
    if (Local(host)) {
      ASSERT_OK(reducer_.OpenLocal(host.user.OpenFrame(), host.user.shape));
    } else {
      ASSERT_OK(host.user.Open(reducer_));
    }
  }

  // Everybody pushes nothing new until it goes back to the oldest segment that somebody
  // lacks.
  void BeginEpoch() {
    for (const Host& host : hosts_) {
      if (host.user.epoch < epoch_) return;
    }
    ++epoch_;
    base_ = kSegments;
    for (const Host& host : hosts_) base_ = std::min(base_, host.completed);
  }

  void Adopt(Host& host) {
    host.user.epoch = epoch_;
    host.user.shape.first = base_;
    // Hosts are up to a window apart, and each a window ahead.
    host.user.shape.window = kSlots;
    host.next = base_;
    if (Local(host)) reducer_.CloseLocal(id());
    Open(host);
  }

  // The same whenever it is asked for.
  Bytes Contribution(const Host& host, uint64_t segment) const {
    std::mt19937_64 random(id() * 1000003 + segment * 101 + host.user.shape.host);
    return testing::RandomArray(DType::kF32, 1 + segment % 60, random);
  }

  void Push(Host& host) {
    if (host.half_pushed) {
      const auto [push, where, before] = *std::exchange(host.half_pushed, std::nullopt);
      const auto& forgotten = transport_.forgotten();
      const auto since = forgotten.begin() + static_cast<ptrdiff_t>(before);
      if (std::find(since, forgotten.end(), id()) != forgotten.end()) return;
      const Bytes bytes = Contribution(host, push.segment);
      std::memcpy(where, bytes.data(), bytes.size());
      ASSERT_OK(reducer_.Received(host.user.peer, push));
      return;
    }
    if (host.user.epoch < epoch_) return;  // Frozen.
    if (host.next >= std::min(host.completed + kWindow, kSegments)) return;
    const uint64_t segment = host.next++;
    const Bytes bytes = Contribution(host, segment);
    const FrameHeader push = host.user.PushFrame(segment, bytes);
    if (Local(host)) {
      Bytes& in = host.ins[segment % kSlots] = bytes;
      Bytes& out = host.outs[segment % kSlots];
      out.assign(bytes.size(), 0xee);
      ASSERT_OK(reducer_.Contribute(push, std::as_bytes(std::span(in)),
                                    reinterpret_cast<std::byte*>(out.data())));
      return;
    }
    const Result<std::byte*> where = reducer_.Accept(host.user.peer, push);
    ASSERT_TRUE(where.ok()) << where.status().message();
    ASSERT_NE(*where, nullptr);
    host.half_pushed = {push, *where, transport_.forgotten().size()};
  }

  void TakeResult(Host& host) {
    const auto frame = transport_.Take(host.user.peer);
    if (!frame) return;
    ASSERT_EQ(frame->header.epoch, host.user.epoch);
    Complete(host, frame->header.segment, frame->payload);
  }

  void Complete(Host& host, uint64_t segment, const Bytes& sum) {
    std::vector<Bytes> inputs;
    for (const Host& other : hosts_) inputs.push_back(Contribution(other, segment));
    const size_t count = inputs[0].size() / 4;
    const Bytes wanted =
        testing::Expected(ReduceOp::kSum, DType::kF32, DType::kF32, inputs, count);
    ASSERT_EQ(testing::FirstDifference(DType::kF32, sum, wanted, count), count);
    if (segment == host.completed) ++host.completed;
  }

  Reducer& reducer_;
  FakeTransport& transport_;
  std::mt19937_64& random_;
  const bool local_;
  std::vector<Host> hosts_;
  uint32_t epoch_ = 0;
  uint64_t base_ = 0;
};

class InterleavingTest : public ::testing::TestWithParam<int> {};

TEST_P(InterleavingTest, EveryHostGetsTheSumsInHostOrder) {
  std::mt19937_64 random(static_cast<uint64_t>(GetParam()));
  std::vector<std::unique_ptr<StreamModel>> models;
  FakeTransport transport;
  Reducer reducer(size_t{64} << 20, transport,
                  [&](uint64_t stream, uint32_t epoch, uint64_t segment) {
                    models[stream - 1]->LocalDone(epoch, segment);
                  });
  const uint64_t streams = 1 + random() % 4;
  for (uint64_t id = 1; id <= streams; ++id) {
    models.push_back(std::make_unique<StreamModel>(
        id, 1 + random() % 5, random() % 2 == 0, reducer, transport, random));
  }
  const auto finished = [](const auto& model) { return model->finished(); };
  for (int step = 0; !std::all_of(models.begin(), models.end(), finished); ++step) {
    ASSERT_LT(step, 1000000);
    models[random() % models.size()]->Step();
    if (HasFatalFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, InterleavingTest, ::testing::Range(1, 41));

}  // namespace
}  // namespace smddp
