// SPDX-License-Identifier: Apache-2.0
#include "transport/greeter.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "tests/transport/party.h"
#include "transport/tcp_socket.h"

namespace smddp {
namespace {

class GreeterFamilyTest : public testing::TestWithParam<const char*> {};

TEST_P(GreeterFamilyTest, PeersMeetAndMayTalk) {
  Party listener(Worker(0), GetParam());
  Party connector(Worker(3), GetParam());
  connector.Connect(42, listener.address(), Worker(0));
  Party::Met& out = connector.Peer();
  Party::Met& in = listener.Peer();
  EXPECT_EQ(out.token, 42u);
  EXPECT_EQ(out.peer, Worker(0));
  EXPECT_EQ(in.token, 0u);
  Identity expected = Worker(3);
  expected.lane = 1;
  EXPECT_EQ(in.peer, expected);
  for (const auto& [from, to] : {std::pair{&out, &in}, std::pair{&in, &out}}) {
    const int fd = from->socket.get();
    EXPECT_NE(::fcntl(fd, F_GETFL) & O_NONBLOCK, 0);
    EXPECT_NE(::fcntl(fd, F_GETFD) & FD_CLOEXEC, 0);
    int no_delay = 0;
    socklen_t size = sizeof(no_delay);
    ::getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &size);
    EXPECT_EQ(no_delay, 1);
    EXPECT_EQ(::send(fd, "ping", 4, 0), 4);
    pollfd wait = {to->socket.get(), POLLIN, 0};
    EXPECT_EQ(::poll(&wait, 1, 5000), 1);
    char bytes[16];
    EXPECT_EQ(::recv(to->socket.get(), bytes, sizeof(bytes), 0), 4);
  }
  EXPECT_EQ(listener.greeter().refused(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Loopback, GreeterFamilyTest,
                         testing::Values("127.0.0.1:0", "[::1]:0"));

TEST(GreeterTest, MeetsAListenerThatComesLater) {
  Party connector(Worker(1));
  std::string address;
  {
    const Party early(Worker(0));
    address = early.address();
  }
  connector.Connect(1, address, Worker(0));
  ::usleep(200'000);
  EXPECT_TRUE(connector.nothing_happened());
  Party late(Worker(0), address);
  EXPECT_EQ(connector.Peer().token, 1u);
}

TEST(GreeterTest, MeetsManyAtOnceFromBothSides) {
  Party a(Worker(0));
  Party b(Worker(1));
  for (uint64_t i = 1; i <= 20; ++i) {
    a.Connect(i, b.address(), Worker(1), 20, i % 2);
    b.Connect(i, a.address(), Worker(0), 20, i % 2);
  }
  a.Peer(39);
  b.Peer(39);
}

TEST(GreeterTest, RefusesAnotherJobButAReducerTakesAny) {
  Party worker(Worker(0, 5));
  Party reducer(Reducer());
  Party other(Worker(1, 6));
  other.Connect(1, worker.address(), Worker(0, 6), 0.3);
  other.Connect(2, reducer.address(), Reducer());
  EXPECT_EQ(other.Peer().token, 2u);
  EXPECT_EQ(reducer.Peer().peer.job, 6u);
  EXPECT_TRUE(Says(other.Failure(1), "it belongs to another job"));
  // The listener refuses as well, if who connects does not mind.
  other.Connect(3, worker.address(), Worker(0, 0), 0.3);
  EXPECT_TRUE(Says(other.Failure(3), ": belongs to another job"));
  EXPECT_TRUE(worker.nothing_happened());
}

TEST(GreeterTest, RefusesAnIdentityThatCannotBe) {
  Party listener(Worker(0));
  Party rank_of_too_few(Worker(4));
  rank_of_too_few.Connect(1, listener.address(), Worker(0));
  EXPECT_TRUE(Says(rank_of_too_few.Failure(1), "rank 4 of 4"));
  Party worker(Worker(1));
  worker.Connect(1, listener.address(), Worker(0), 20, 2);
  EXPECT_TRUE(Says(worker.Failure(1), "lane 2 of 2"));
}

TEST(GreeterTest, ARefusalForGoodIsReportedAtOnce) {
  Party listener(Worker(0));
  Party connector(Worker(1));
  listener.AnswerNext({Status(StatusCode::kInvalidArgument, "rank 1 is here already")});
  connector.Connect(1, listener.address(), Worker(0), 0);  // For ever.
  const Status why = connector.Failure(1);
  EXPECT_EQ(why.code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(Says(why, "rank X at")) << why.message();
  EXPECT_TRUE(Says(why, "refused us: rank 1 is here already")) << why.message();
}

TEST(GreeterTest, AnyOtherRefusalIsTriedAgain) {
  Party reducer(Reducer());
  Party worker(Worker(1));
  const Status busy(StatusCode::kAborted, "serves another job");
  reducer.AnswerNext({busy, busy});
  worker.Connect(1, reducer.address(), Reducer());
  EXPECT_EQ(worker.Peer().token, 1u);
  EXPECT_EQ(reducer.greeter().refused(), 2u);

  reducer.AnswerNext(std::vector<Status>(100, busy));
  worker.Connect(2, reducer.address(), Reducer(), 0.3);
  EXPECT_TRUE(Says(worker.Failure(2), "serves another job"));
}

TEST(GreeterTest, ChecksWhoListens) {
  Party listener(Worker(2));
  Party connector(Worker(1));
  connector.Connect(1, listener.address(), Worker(3), 0.3);
  connector.Connect(2, listener.address(), Reducer(), 0.3);
  EXPECT_TRUE(Says(connector.Failure(1), "there is rank 2, not rank 3"));
  EXPECT_TRUE(Says(connector.Failure(2), "there is rank 2, not a reducer"));
  EXPECT_TRUE(listener.nothing_happened());
}

TEST(GreeterTest, NamesTheReasonWhenNobodyIsThere) {
  Party connector(Worker(1));
  std::string address;
  {
    const Party gone(Worker(0));
    address = gone.address();
  }
  connector.Connect(1, address, Worker(0), 0.3);
  const Status why = connector.Failure(1);
  EXPECT_EQ(why.code(), StatusCode::kDeadline);
  EXPECT_TRUE(Says(why, "refused")) << why.message();
  EXPECT_TRUE(Says(why, "SMDDP_INTERFACE")) << why.message();
  connector.Connect(2, "no-such-host.invalid:80", Worker(0), 0.2);
  EXPECT_TRUE(Says(connector.Failure(2), "cannot resolve"));
}

TEST(GreeterTest, AMuteListenerIsGivenUp) {
  Address address = *ResolveAddress("127.0.0.1:0");
  auto mute = ListenOn(address);  // The kernel connects, nobody answers.
  ASSERT_TRUE(mute.ok());
  Party connector(Worker(1), "127.0.0.1:0", "s3cret", 0.1);
  connector.Connect(1, address.Text(), Worker(0), 0.5);
  EXPECT_TRUE(Says(connector.Failure(1), "no answer within 0.1 s"));
}

TEST(GreeterTest, NothingFollowsACancel) {
  Party listener(Worker(0));
  Party connector(Worker(1));
  const Status busy(StatusCode::kAborted, "busy");
  listener.AnswerNext(std::vector<Status>(3, busy));
  connector.Connect(1, listener.address(), Worker(0), 0);
  EXPECT_TRUE(listener.Refused(1));
  connector.greeter().Cancel(1);
  connector.greeter().Cancel(7);  // Never there.
  const bool quiet = connector.nothing_happened();
  ::usleep(300'000);
  EXPECT_TRUE(quiet);
  EXPECT_TRUE(connector.nothing_happened());
  listener.AnswerNext({});
  connector.Connect(1, listener.address(), Worker(0));  // The token may be used again.
  EXPECT_EQ(connector.Peer().token, 1u);
}

TEST(GreeterTest, ATakenPortIsAnErrorThatSaysWhatToDo) {
  Party first(Worker(0));
  auto second = Greeter::Start(first.greeter().address(), {Worker(1), "s", 5, 64}, {});
  ASSERT_FALSE(second.ok());
  EXPECT_TRUE(Says(second.status(), first.address())) << second.status().message();
  EXPECT_TRUE(Says(second.status(), "SMDDP_PORT")) << second.status().message();
  auto elsewhere =
      Greeter::Start(*ResolveAddress("192.0.2.1:0"), {Worker(1), "s", 5, 64}, {});
  ASSERT_FALSE(elsewhere.ok());
  EXPECT_TRUE(Says(elsewhere.status(), "SMDDP_INTERFACE"));
  auto open = Greeter::Start(*ResolveAddress("127.0.0.1:0"), {Worker(1), "", 5, 64}, {});
  ASSERT_FALSE(open.ok());
  EXPECT_TRUE(Says(open.status(), "SMDDP_SECRET"));
}

TEST(GreeterTest, AnAddressInTimeWaitCanBeUsedAgain) {
  std::string address;
  Party connector(Worker(1));
  {
    Party first(Worker(0));
    address = first.address();
    connector.Connect(1, address, Worker(0));
    connector.Peer();
    first.Peer().socket.Reset();  // This end closes first: TIME_WAIT is ours.
    EXPECT_EQ(ReadToEnd(connector.Peer().socket.get()), "");
    connector.Peer().socket.Reset();
  }
  Party second(Worker(0), address);
  connector.Connect(2, address, Worker(0));
  EXPECT_EQ(connector.Peer(1).token, 2u);
}

}  // namespace
}  // namespace smddp
