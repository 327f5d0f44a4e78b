// SPDX-License-Identifier: Apache-2.0
// Connections by those who do not know the job's secret.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/transport/party.h"
#include "transport/greeter.h"
#include "transport/tcp_socket.h"

namespace smddp {
namespace {

// A connection by somebody who knows nothing.
UniqueFd Stranger(const Party& party) {
  auto socket = BeginConnect(*ResolveAddress(party.address()));
  EXPECT_TRUE(socket.ok()) << socket.status().message();
  pollfd wait = {socket->get(), POLLOUT, 0};
  ::poll(&wait, 1, 5000);
  return std::move(*socket);
}

TEST(StrangerTest, RefusesAnotherSecretAndSaysNothing) {
  Party listener(Worker(0));
  Party stranger(Worker(1), "127.0.0.1:0", "other");
  stranger.Connect(1, listener.address(), Worker(0), 0.5);
  const Status why = stranger.Failure(1);
  EXPECT_EQ(why.code(), StatusCode::kDeadline);
  EXPECT_TRUE(Says(why, "no connection to rank X at 127.0.0.1:")) << why.message();
  EXPECT_TRUE(Says(why, "within 0.5 s")) << why.message();
  EXPECT_TRUE(Says(why, "SMDDP_SECRET")) << why.message();
  EXPECT_TRUE(listener.Refused(2));  // It tried more than once.
  EXPECT_TRUE(listener.nothing_happened());
}

TEST(StrangerTest, StrangersAreClosedAndCounted) {
  Party listener(Worker(0), "127.0.0.1:0", "s3cret", 0.5);
  std::mt19937 random(3);
  std::string noise(1000, '\0');
  for (char& byte : noise) byte = static_cast<char>(random());
  const UniqueFd garbage = Stranger(listener);
  ::send(garbage.get(), noise.data(), noise.size(), MSG_NOSIGNAL);
  EXPECT_EQ(ReadToEnd(garbage.get()), "");
  const UniqueFd http = Stranger(listener);
  ::send(http.get(), "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL);
  EXPECT_EQ(ReadToEnd(http.get()), "");  // Too short to be judged: by its deadline.
  Stranger(listener).Reset();
  EXPECT_TRUE(listener.Refused(3));
  EXPECT_TRUE(listener.nothing_happened());
}

TEST(StrangerTest, TwoHundredSilentConnectionsKeepNobodyOut) {
  Party listener(Worker(0), "127.0.0.1:0", "s3cret", 60, 16);
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(Stranger(listener));
  Party connector(Worker(1));
  const Deadline deadline = Deadline::After(10);
  connector.Connect(1, listener.address(), Worker(0));
  connector.Peer();
  EXPECT_EQ(listener.Peer().peer.process, 1u);
  EXPECT_FALSE(deadline.Passed());
  EXPECT_GT(listener.greeter().refused(), 100u);
}

}  // namespace
}  // namespace smddp
