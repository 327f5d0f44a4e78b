// SPDX-License-Identifier: Apache-2.0
#include "transport/handshake.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace smddp {
namespace {

using Message = std::vector<std::byte>;

const Identity kWorker = {.process = 2, .processes = 4, .lane = 1, .lanes = 2, .job = 77};
const Identity kReducer = {.role = Identity::Role::kReducer, .lanes = 2};

Nonce NonceOf(int value) {
  Nonce nonce;
  nonce.fill(static_cast<std::byte>(value));
  return nonce;
}

void Fill(Handshake& handshake, const Message& message) {
  ASSERT_EQ(handshake.room().size(), message.size());
  std::ranges::copy(message, handshake.room().begin());
  EXPECT_TRUE(handshake.Took(message.size()));
}

// Runs a handshake; `meddle` may change each message on its way (0: hello, 3: verdict).
// Whether both ends were content.
template <typename Meddle>
bool Shake(ConnectorHandshake& connector, ListenerHandshake& listener,
           const Status& admitted, Meddle meddle) {
  Message hello = connector.hello();
  meddle(0, hello);
  Fill(listener, hello);
  auto challenge = listener.Next();
  if (!challenge.ok()) return false;
  meddle(1, *challenge);
  Fill(connector, *challenge);
  auto proof = connector.Next();
  if (!proof.ok()) return false;
  meddle(2, *proof);
  Fill(listener, *proof);
  if (!listener.Next().ok() || !listener.proved()) return false;
  Message verdict = listener.Verdict(admitted);
  meddle(3, verdict);
  Fill(connector, verdict);
  return connector.Next().ok() && connector.done();
}

struct Ends {
  Ends(const std::string& theirs = "secret", int listener_nonce = 2)
      : listener(kReducer, theirs, NonceOf(listener_nonce)) {}
  ConnectorHandshake connector{kWorker, "secret", NonceOf(1)};
  ListenerHandshake listener;
};

constexpr auto kLeaveAlone = [](int, Message&) {};

TEST(HandshakeTest, EachLearnsWhoTheOtherIs) {
  Ends ends;
  ASSERT_TRUE(Shake(ends.connector, ends.listener, Status(), kLeaveAlone));
  EXPECT_EQ(ends.connector.listener(), kReducer);
  EXPECT_EQ(ends.listener.connector(), kWorker);
  EXPECT_TRUE(ends.connector.room().empty());
  EXPECT_TRUE(ends.listener.room().empty());
}

TEST(HandshakeTest, AnotherSecretFailsAndShowsNothing) {
  Ends same;
  Ends other("secret2");
  Message challenges[2];
  const auto keep = [](Message& to) {
    return [&to](int which, Message& message) {
      if (which == 1) to = message;
    };
  };
  EXPECT_TRUE(Shake(same.connector, same.listener, Status(), keep(challenges[0])));
  EXPECT_FALSE(Shake(other.connector, other.listener, Status(), keep(challenges[1])));
  EXPECT_FALSE(other.listener.proved());
  EXPECT_EQ(challenges[0], challenges[1]);
}

// Every byte of every message counts, so nothing can be replaced on the way.
TEST(HandshakeTest, AnyChangeOnTheWayFails) {
  for (int target = 0; target < 4; ++target) {
    size_t size = 1;
    for (size_t i = 0; i < size; ++i) {
      Ends ends;
      const auto flip = [&](int which, Message& message) {
        if (which != target) return;
        size = message.size();
        message[i] ^= std::byte{1};
      };
      ASSERT_FALSE(Shake(ends.connector, ends.listener, Status(), flip))
          << "message " << target << ", byte " << i;
    }
    EXPECT_GE(size, 32u);
  }
}

TEST(HandshakeTest, AnOldProofIsWorthNothing) {
  Message old;
  Ends first;
  ASSERT_TRUE(
      Shake(first.connector, first.listener, Status(), [&](int which, Message& m) {
        if (which == 2) old = m;
      }));
  Ends second("secret", 3);  // The listener's nonce is fresh.
  EXPECT_FALSE(
      Shake(second.connector, second.listener, Status(), [&](int which, Message& m) {
        if (which == 2) m = old;
      }));
}

// Who knows no secret cannot have the two ends of a process prove things to each other:
// a listener's proof is none of a connector.
TEST(HandshakeTest, AProofCountsInItsDirectionOnly) {
  Ends ends;
  EXPECT_FALSE(Shake(ends.connector, ends.listener, Status(), [&](int which, Message& m) {
    if (which != 2) return;
    const Message verdict = ends.listener.Verdict(Status());
    m.assign(verdict.end() - 32, verdict.end());
  }));
}

TEST(HandshakeTest, ARefusalArrivesWithItsReason) {
  Ends ends;
  const std::string reason(400, 'r');
  EXPECT_FALSE(
      Shake(ends.connector, ends.listener,
            Status(StatusCode::kInvalidArgument, "rank 2 is here already: " + reason),
            kLeaveAlone));
  EXPECT_FALSE(ends.connector.done());
  Ends again;
  Status seen;
  const Status refusal(StatusCode::kInvalidArgument, "rank 2 is here already");
  Fill(again.listener, again.connector.hello());
  Fill(again.connector, *again.listener.Next());
  Fill(again.listener, *again.connector.Next());
  ASSERT_TRUE(again.listener.Next().ok());
  Fill(again.connector, again.listener.Verdict(refusal));
  const auto end = again.connector.Next();
  EXPECT_EQ(end.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(end.status().message(), refusal.message());
}

TEST(HandshakeTest, NoncesDiffer) {
  const auto a = MakeNonce();
  const auto b = MakeNonce();
  ASSERT_TRUE(a.ok() && b.ok());
  EXPECT_NE(*a, *b);
}

}  // namespace
}  // namespace smddp
