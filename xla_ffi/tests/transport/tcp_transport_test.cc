// SPDX-License-Identifier: Apache-2.0
#include "transport/tcp_transport.h"

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/transport/recorder.h"

namespace smddp {
namespace {

// What the left end calls the right one, and the other way round.
constexpr int kRight = 7;
constexpr int kLeft = 3;

class TcpTransportTest : public testing::Test {
 protected:
  void Join(int buffer_bytes = 0) {
    auto [a, b] = LoopbackPair(buffer_bytes);
    left.transport->AddPeer(kRight, std::move(a));
    right.transport->AddPeer(kLeft, std::move(b));
  }
  // The left end and a raw socket that a test writes and reads by hand.
  UniqueFd JoinRaw(int buffer_bytes = 0) {
    auto [a, b] = LoopbackPair(buffer_bytes);
    left.transport->AddPeer(kRight, std::move(a));
    return std::move(b);
  }
  bool Received(const End& end, size_t frames) {
    return Drive({&left, &right}, [&] { return end.frames().size() >= frames; });
  }

  End left;
  End right;
};

void WriteAll(int socket, std::span<const std::byte> bytes) {
  ASSERT_EQ(::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(bytes.size()));
}

void WriteHeader(int socket, FrameHeader header, size_t payload) {
  header.payload = static_cast<uint32_t>(payload);
  std::array<std::byte, kHeaderBytes> bytes;
  Encode(header, bytes);
  WriteAll(socket, bytes);
}

TEST_F(TcpTransportTest, CarriesFramesOfAllSizesBothWays) {
  Join();
  std::mt19937 random(1);
  std::vector<std::string> payloads;
  for (unsigned i = 0; i < 300; ++i) {
    const size_t limit = i % 50 == 0 ? 3'000'000 : i % 3 == 0 ? 100 : 70'000;
    payloads.push_back(Pattern(random() % limit, i));
  }
  payloads.push_back("");
  for (size_t i = 0; i < payloads.size(); ++i) {
    FrameHeader header = Header(FrameKind::kPush, 1, i);
    header.payload = static_cast<uint32_t>(payloads[i].size());
    left.transport->Send(kRight, header, Bytes(payloads[i]));
    right.transport->Send(kLeft, header, Bytes(payloads[i]));
  }
  ASSERT_TRUE(Received(left, payloads.size()));
  ASSERT_TRUE(Received(right, payloads.size()));
  for (size_t i = 0; i < payloads.size(); ++i) {
    EXPECT_EQ(left.frames()[i].header.segment, i);
    ASSERT_TRUE(left.frames()[i].bytes == payloads[i]) << i;
    ASSERT_TRUE(right.frames()[i].bytes == payloads[i]) << i;
    EXPECT_EQ(right.frames()[i].peer, kLeft);
  }
  EXPECT_TRUE(left.transport->Flushed());
  EXPECT_EQ(left.transport->counters().bytes_sent,
            right.transport->counters().bytes_received);
  EXPECT_EQ(left.transport->counters().frames_sent, payloads.size());
}

TEST_F(TcpTransportTest, ControlFramesArriveWithTheirPayload) {
  Join();
  const std::string longest = Pattern(kControlBytes, 1);
  left.transport->SendCopy(kRight, Header(FrameKind::kOrder), Bytes(longest));
  {
    const std::string gone = "copied";
    left.transport->SendCopy(kRight, Header(FrameKind::kNotice), Bytes(gone));
  }
  ASSERT_TRUE(Received(right, 2));
  EXPECT_EQ(right.frames()[0].bytes, longest);
  EXPECT_EQ(right.frames()[1].bytes, "copied");
}

TEST_F(TcpTransportTest, ResultsAndControlOvertakePushesButNotTheStreamsOpening) {
  Join(16384);
  const std::string payload = Pattern(1 << 20, 3);
  const auto send = [&](FrameKind kind, uint64_t segment) {
    FrameHeader header = Header(kind, 1, segment);
    const bool data = IsData(kind);
    header.payload = data ? static_cast<uint32_t>(payload.size()) : 0;
    left.transport->Send(kRight, header, data ? Bytes(payload) : Bytes(""));
  };
  send(FrameKind::kPush, 0);  // Fills the socket.
  send(FrameKind::kPush, 1);
  send(FrameKind::kOpen, 2);
  send(FrameKind::kPush, 3);
  send(FrameKind::kResult, 4);
  send(FrameKind::kOrder, 5);
  ASSERT_TRUE(Received(right, 6));
  std::vector<uint64_t> order;
  for (const auto& frame : right.frames()) order.push_back(frame.header.segment);
  EXPECT_EQ(order, (std::vector<uint64_t>{0, 4, 5, 1, 2, 3}));
}

TEST_F(TcpTransportTest, ASlowReaderLeavesFramesInPlace) {
  const UniqueFd slow = JoinRaw(16384);
  std::string payload = Pattern(1 << 20, 1);
  FrameHeader header = Header(FrameKind::kPush);
  header.payload = static_cast<uint32_t>(payload.size());
  left.transport->Send(kRight, header, Bytes(payload));
  left.transport->Send(kRight, header, Bytes(payload));
  left.transport->Progress();
  EXPECT_FALSE(left.transport->Flushed());
  // Not copied: what is written now is what will be sent.
  payload.back() = 'x';
  std::string read;
  while (read.size() < 2 * (kHeaderBytes + payload.size())) {
    left.transport->Progress();
    char buffer[65536];
    const ssize_t bytes = ::recv(slow.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
    if (bytes > 0) read.append(buffer, static_cast<size_t>(bytes));
  }
  EXPECT_TRUE(left.transport->Flushed());
  EXPECT_TRUE(read.substr(kHeaderBytes, payload.size()) == payload);
  EXPECT_TRUE(read.substr(2 * kHeaderBytes + payload.size()) == payload);
}

TEST_F(TcpTransportTest, ForgetTakesBackWhatWaitsAndFinishesWhatBegan) {
  Join(16384);
  auto payload = std::make_unique<std::string>(Pattern(1 << 20, 5));
  const std::string expected = *payload;
  const std::string other = Pattern(5000, 6);
  FrameHeader header = Header(FrameKind::kPush, 1, 0);
  header.payload = static_cast<uint32_t>(payload->size());
  left.transport->Send(kRight, header, Bytes(*payload));  // Half sent.
  header.segment = 1;
  left.transport->Send(kRight, header, Bytes(*payload));
  header.kind = FrameKind::kResult;
  left.transport->Send(kRight, header, Bytes(*payload));
  left.transport->SendCopy(kRight, Header(FrameKind::kLeave, 1), {});
  FrameHeader kept = Header(FrameKind::kPush, 2, 9);
  kept.payload = static_cast<uint32_t>(other.size());
  left.transport->Send(kRight, kept, Bytes(other));
  left.transport->Forget(1);
  payload.reset();  // Under ASan a later read of it would be found.
  ASSERT_TRUE(Received(right, 3));
  ASSERT_TRUE(Drive({&left, &right}, [&] { return left.transport->Flushed(); }));
  ASSERT_EQ(right.frames().size(), 3u);
  EXPECT_TRUE(right.frames()[0].bytes == expected);
  EXPECT_EQ(right.frames()[1].header.kind, FrameKind::kLeave);
  EXPECT_TRUE(right.frames()[2].bytes == other);
}

TEST_F(TcpTransportTest, ForgetThrowsAHalfReceivedPayloadAway) {
  const UniqueFd raw = JoinRaw();
  auto room = std::make_unique<std::string>(100'000, '.');
  left.recorder.accept = [&](int, const FrameHeader&) -> Result<std::byte*> {
    return reinterpret_cast<std::byte*>(room->data());
  };
  const std::string payload = Pattern(100'000, 1);
  WriteHeader(raw.get(), Header(FrameKind::kPush, 4), payload.size());
  WriteAll(raw.get(), Bytes(payload).first(60'000));
  ASSERT_TRUE(Drive({&left}, [&] {
    return left.transport->counters().bytes_received == kHeaderBytes + 60'000;
  }));
  EXPECT_TRUE(room->substr(0, 60'000) == payload.substr(0, 60'000));
  left.transport->Forget(4);
  room.reset();
  left.recorder.accept = nullptr;
  WriteAll(raw.get(), Bytes(payload).subspan(60'000));
  WriteHeader(raw.get(), Header(FrameKind::kPush, 5), 3);
  WriteAll(raw.get(), Bytes("abc"));
  ASSERT_TRUE(Drive({&left}, [&] { return !left.frames().empty(); }));
  ASSERT_EQ(left.frames().size(), 1u);
  EXPECT_EQ(left.frames()[0].header.stream, 5u);
  EXPECT_EQ(left.frames()[0].bytes, "abc");
}

TEST_F(TcpTransportTest, PayloadsThatNobodyWantsAreThrownAway) {
  Join();
  right.recorder.accept = [&](int, const FrameHeader& header) -> Result<std::byte*> {
    if (header.segment % 2 == 0) return nullptr;
    return right.recorder.Room(header.payload);
  };
  std::vector<std::string> payloads;
  for (unsigned i = 0; i < 40; ++i) payloads.push_back(Pattern(i * 1999, i));
  for (size_t i = 0; i < payloads.size(); ++i) {
    FrameHeader header = Header(FrameKind::kPush, 1, i);
    header.payload = static_cast<uint32_t>(payloads[i].size());
    left.transport->Send(kRight, header, Bytes(payloads[i]));
  }
  ASSERT_TRUE(Received(right, 20));
  for (size_t i = 0; i < 20; ++i) {
    EXPECT_EQ(right.frames()[i].header.segment, 2 * i + 1);
    EXPECT_TRUE(right.frames()[i].bytes == payloads[2 * i + 1]);
  }
}

TEST_F(TcpTransportTest, WhoBreaksTheProtocolIsDropped) {
  const auto why = [&](const std::function<void(int)>& write) {
    left.recorder.lost.clear();
    const UniqueFd raw = JoinRaw();
    write(raw.get());
    EXPECT_TRUE(Drive({&left}, [&] { return !left.recorder.lost.empty(); }));
    EXPECT_FALSE(left.transport->HasPeer(kRight));
    char byte;
    EXPECT_LE(::recv(raw.get(), &byte, 1, 0), 0);  // It is closed.
    return left.recorder.lost[kRight];
  };
  EXPECT_EQ(why([](int raw) {
              WriteAll(raw, Bytes(std::string(100, 'z')));
            }).rfind("broke the protocol: unknown kind 122", 0),
            0u);
  EXPECT_NE(why([](int raw) {
              WriteHeader(raw, Header(FrameKind::kOrder), 4097);
            }).find("4097"),
            std::string::npos);
  left.recorder.accept = [](int, const FrameHeader&) -> Result<std::byte*> {
    return Status(StatusCode::kMismatch, "no such segment");
  };
  EXPECT_EQ(why([](int raw) { WriteHeader(raw, Header(FrameKind::kPush), 4); }),
            "broke the protocol: no such segment");
  left.recorder.received = [](int, const FrameHeader&) {
    return Status(StatusCode::kMismatch, "out of turn");
  };
  EXPECT_EQ(why([](int raw) { WriteHeader(raw, Header(FrameKind::kCommit), 0); }),
            "broke the protocol: out of turn");
}

TEST_F(TcpTransportTest, TellsAGoodbyeFromADeath) {
  Join();
  // Data that left never reads makes the kernel reset the connection.
  const std::string unread = Pattern(50'000, 1);
  right.transport->SendCopy(kLeft, Header(FrameKind::kPush), Bytes(unread));
  const std::string text = "rank 3 called shutdown()";
  left.transport->SendCopy(kRight, Header(FrameKind::kGoodbye), Bytes(text));
  left.transport->DropPeer(kRight);
  EXPECT_FALSE(left.transport->HasPeer(kRight));
  ASSERT_TRUE(Drive({&right}, [&] { return !right.recorder.lost.empty(); }));
  EXPECT_EQ(right.recorder.lost[kLeft], "left the job: " + text);
  ASSERT_EQ(right.frames().size(), 1u);
  EXPECT_EQ(right.frames()[0].bytes, text);
  EXPECT_TRUE(left.recorder.lost.empty());

  Join();  // Both may be added again.
  left.transport->DropPeer(kRight);
  right.recorder.lost.clear();
  ASSERT_TRUE(Drive({&right}, [&] { return !right.recorder.lost.empty(); }));
  EXPECT_EQ(right.recorder.lost[kLeft], "is gone: its process ended or was killed");
}

TEST_F(TcpTransportTest, AConnectionEndsEvenIfAChildHoldsACopy) {
  for (const bool drop : {true, false}) {
    right.recorder.lost.clear();
    auto [a, b] = LoopbackPair();
    const UniqueFd copy(::dup(a.get()));
    left.transport->AddPeer(kRight, std::move(a));
    right.transport->AddPeer(kLeft, std::move(b));
    if (drop) {
      left.transport->DropPeer(kRight);
    } else {
      left.transport.reset();
    }
    EXPECT_TRUE(Drive({&right}, [&] { return !right.recorder.lost.empty(); })) << drop;
  }
}

TEST_F(TcpTransportTest, SendingToThoseWhoAreGoneIsReportedByProgressOnly) {
  UniqueFd raw = JoinRaw();
  WriteHeader(raw.get(), Header(FrameKind::kGoodbye), 3);
  WriteAll(raw.get(), Bytes("bye"));
  raw.Reset();
  const std::string payload = Pattern(1 << 20, 1);
  FrameHeader header = Header(FrameKind::kPush);
  header.payload = static_cast<uint32_t>(payload.size());
  for (int i = 0; i < 20; ++i) {
    left.transport->Send(kRight, header, Bytes(payload));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  left.transport->Send(99, header, Bytes(payload));  // Never there.
  EXPECT_TRUE(left.recorder.lost.empty());
  ASSERT_TRUE(Drive({&left}, [&] { return !left.recorder.lost.empty(); }));
  // What it said before is read first.
  EXPECT_EQ(left.recorder.lost[kRight], "left the job: bye");
  EXPECT_TRUE(left.transport->Flushed());
}

TEST_F(TcpTransportTest, CallbacksMayDropAddSendAndForget) {
  Join();
  End third;
  auto [a, b] = LoopbackPair();
  right.transport->AddPeer(8, std::move(a));
  third.transport->AddPeer(kRight, std::move(b));
  // Dropped while more frames of it are in the buffer: none of them is delivered.
  right.recorder.received = [&](int peer, const FrameHeader& header) {
    right.transport->Forget(header.stream);
    right.transport->SendCopy(8, Header(FrameKind::kNotice), {});
    if (header.segment == 1) right.transport->DropPeer(peer);
    return Status();
  };
  for (uint64_t i = 0; i < 5; ++i) {
    left.transport->SendCopy(kRight, Header(FrameKind::kOrder, 1, i), {});
  }
  // Lost of one peer drops and replaces another.
  left.recorder.on_lost = [&](int peer) {
    auto [c, d] = LoopbackPair();
    left.transport->AddPeer(peer, std::move(c));
    right.transport->AddPeer(kLeft, std::move(d));
  };
  ASSERT_TRUE(Drive({&left, &right, &third}, [&] {
    return third.frames().size() == 2 && !left.recorder.lost.empty();
  }));
  EXPECT_EQ(right.frames().size(), 2u);
  EXPECT_TRUE(left.transport->HasPeer(kRight));
  left.transport->SendCopy(kRight, Header(FrameKind::kOrder, 1, 0), {});
  ASSERT_TRUE(Received(right, 3));
}

}  // namespace
}  // namespace smddp
