// SPDX-License-Identifier: Apache-2.0
// A dedicated reducer and its workers, over loopback.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "reducer/reducer_server.h"
#include "tests/reducer/stream_user.h"
#include "transport/greeter.h"
#include "transport/tcp_transport.h"

namespace smddp {
namespace {

using testing::Bytes;
using testing::BytesOf;
using testing::StreamUser;
using testing::UsersOf;

constexpr double kLong = 20;

ReducerServer::Options Options() {
  ReducerServer::Options options;
  options.listen = "127.0.0.1:0";
  options.secret = "a secret";
  options.threads = 2;
  options.staging_bytes = size_t{1} << 20;
  return options;
}

std::unique_ptr<ReducerServer> Serve(const ReducerServer::Options& options = Options()) {
  auto server = ReducerServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status().message();
  return std::move(*server);
}

// One worker of a job, with one connection per lane; driven by the test's thread. Lanes
// are its transport's peers.
class Worker final : private Transport::Receiver {
 public:
  Worker(const ReducerServer& server, Identity me, const std::string& secret = "a secret")
      : server_(server.address()), me_(me) {
    Greeter::Events events;
    events.admit = [](const Identity&) { return Status(StatusCode::kAborted, "no"); };
    events.on_peer = [this](const Identity&, uint64_t token, UniqueFd socket) {
      const std::lock_guard lock(mutex_);
      sockets_[token] = std::move(socket);
      changed_.notify_all();
    };
    events.on_failed = [this](uint64_t token, const Status& why) {
      const std::lock_guard lock(mutex_);
      failures_[token] = why;
      changed_.notify_all();
    };
    transport_ = std::move(*MakeTcpTransport({}, *this));
    Greeter::Options options;
    options.me = me;
    options.secret = secret;
    greeter_ = std::move(
        *Greeter::Start(*ResolveAddress("127.0.0.1:0"), std::move(options), events));
  }

  void Call(uint32_t lane, double seconds = kLong) {
    Identity expected;
    expected.role = Identity::Role::kReducer;
    greeter_->Connect(lane + 1, server_, expected, lane, "the reducer", seconds);
  }
  bool Met(uint32_t lane) {
    const std::lock_guard lock(mutex_);
    return sockets_.contains(lane + 1);
  }
  // Waits for what becomes of a Call.
  Status Meet(uint32_t lane) {
    std::unique_lock lock(mutex_);
    const uint64_t token = lane + 1;
    changed_.wait(lock,
                  [&] { return sockets_.contains(token) || failures_.contains(token); });
    if (failures_.contains(token)) return failures_.extract(token).mapped();
    transport_->AddPeer(static_cast<int>(lane),
                        std::move(sockets_.extract(token).mapped()));
    return Status();
  }
  void MeetAll() {
    for (uint32_t lane = 0; lane < me_.lanes; ++lane) {
      Call(lane);
      ASSERT_OK(Meet(lane));
    }
  }

  void Open(const StreamUser& user, int lane = 0) {
    std::byte bytes[kShapeBytes];
    Encode(user.shape, bytes);
    transport_->SendCopy(lane, user.OpenFrame(), bytes);
  }
  void Push(const StreamUser& user, uint64_t segment, const Bytes& bytes, int lane = 0) {
    transport_->SendCopy(lane, user.PushFrame(segment, bytes),
                         std::as_bytes(std::span(bytes)));
  }
  // Goes on until `done`; the rest is up to what it looks at.
  void Until(const std::function<bool()>& done) {
    const Deadline deadline = Deadline::After(kLong);
    while (!done()) {
      ASSERT_FALSE(deadline.Passed());
      transport_->Progress();
      transport_->Wait(0.01);
    }
  }
  Bytes Sum(uint64_t stream, uint64_t segment) {
    Until([&] { return there_.contains({stream, segment}); });
    return sums_[{stream, segment}];
  }
  std::string Farewell(int lane = 0) {
    Until([&] { return lost_.contains(lane); });
    return lost_[lane];
  }

 private:
  Result<std::byte*> Accept(int, const FrameHeader& header) override {
    Bytes& sum = sums_[{header.stream, header.segment}];
    sum.resize(header.payload + 1);  // Has an address, if it is empty.
    return reinterpret_cast<std::byte*>(sum.data());
  }
  Status Received(int, const FrameHeader& header, std::span<const std::byte>) override {
    if (header.kind == FrameKind::kResult) {
      sums_[{header.stream, header.segment}].pop_back();
      there_[{header.stream, header.segment}] = true;
    }
    return Status();
  }
  void Lost(int peer, const std::string& why) override { lost_[peer] = why; }

  const std::string server_;
  const Identity me_;
  std::unique_ptr<Transport> transport_;
  std::map<std::pair<uint64_t, uint64_t>, Bytes> sums_;
  std::map<std::pair<uint64_t, uint64_t>, bool> there_;
  std::map<int, std::string> lost_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, UniqueFd> sockets_;
  std::map<uint64_t, Status> failures_;
  std::unique_ptr<Greeter> greeter_;
};

Identity Rank(uint32_t process, uint64_t job = 1, uint32_t processes = 2,
              uint32_t lanes = 1) {
  Identity me;
  me.process = process;
  me.processes = processes;
  me.lanes = lanes;
  me.job = job;
  return me;
}

// What the server's threads do soon.
bool Soon(const std::function<bool()>& done) {
  const Deadline deadline = Deadline::After(kLong);
  while (!done()) {
    if (deadline.Passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return true;
}

TEST(ReducerServerTest, SumsOverMoreLanesThanThreadsAndForgets) {
  auto server = Serve();
  for (uint64_t job = 1; job <= 2; ++job) {
    {
      std::vector<std::unique_ptr<Worker>> workers;
      for (uint32_t p = 0; p < 3; ++p) {
        workers.push_back(std::make_unique<Worker>(*server, Rank(p, job, 3, 3)));
        workers.back()->MeetAll();
      }
      for (uint64_t segment = 0; segment < 20; ++segment) {
        for (int lane = 0; lane < 3; ++lane) {
          const auto users = UsersOf(100 + static_cast<uint64_t>(lane), 3);
          for (uint32_t p = 0; p < 3; ++p) {
            if (segment == 0) workers[p]->Open(users[p], lane);
            workers[p]->Push(users[p], segment,
                             BytesOf<float>({float(p), float(segment), float(lane)}),
                             lane);
          }
        }
        for (uint64_t lane = 0; lane < 3; ++lane) {
          for (auto& worker : workers) {
            ASSERT_EQ(worker->Sum(100 + lane, segment),
                      BytesOf<float>({3, 3 * float(segment), 3 * float(lane)}));
          }
        }
      }
      const ReducerServer::Stats stats = server->stats();
      EXPECT_EQ(stats.connections, 9u);
      EXPECT_EQ(stats.jobs, job - 1);
      EXPECT_EQ(stats.summed.segments, 60 * job);
      EXPECT_GT(stats.summed.staging_bytes, 0u);
      EXPECT_GT(stats.memory_bytes, 0u);
      EXPECT_GT(stats.cpu_seconds, 0);
    }
    ASSERT_TRUE(Soon([&] { return server->stats().jobs == job; }));
    const ReducerServer::Stats stats = server->stats();
    EXPECT_EQ(stats.connections, 0u);
    EXPECT_EQ(stats.summed.segments, 60 * job);
    EXPECT_EQ(stats.summed.staging_bytes, 0u);
    EXPECT_FALSE(server->Wait(0));
  }
}

TEST(ReducerServerTest, AnotherJobWaitsForItsTurn) {
  auto server = Serve();
  auto first = std::make_unique<Worker>(*server, Rank(0, 1));
  first->MeetAll();
  Worker second(*server, Rank(0, 2));
  second.Call(0, 0.2);
  EXPECT_REFUSED(second.Meet(0), "busy with job 0000000000000001 of 2 processes");
  second.Call(0);
  EXPECT_TRUE(Soon([&] { return server->stats().refused >= 2; }));
  EXPECT_FALSE(second.Met(0));
  first.reset();
  ASSERT_OK(second.Meet(0));
}

TEST(ReducerServerTest, WorkersThatDifferAreRefusedForGood) {
  auto server = Serve();
  Worker first(*server, Rank(0, 1));
  first.MeetAll();
  Worker more(*server, Rank(1, 1, 3));
  more.Call(0);
  EXPECT_REFUSED(more.Meet(0), "SMDDP_CONNECTIONS must be the same on all");
  Worker lanes(*server, Rank(1, 1, 2, 2));
  lanes.Call(1);
  EXPECT_REFUSED(lanes.Meet(1), "2 processes and 2 connections");
  Identity other = Rank(0, 1);
  other.role = Identity::Role::kReducer;
  Worker reducer(*server, other);
  reducer.Call(0);
  EXPECT_REFUSED(reducer.Meet(0), "serves workers only");
}

TEST(ReducerServerTest, AJobThatGoesWrongIsToldAndNotLetInAgain) {
  auto server = Serve();
  {
    Worker worker(*server, Rank(0, 1));
    Worker other(*server, Rank(1, 1));
    worker.MeetAll();
    other.MeetAll();
    StreamUser user = UsersOf(7, 2)[0];
    user.shape.slot_bytes = size_t{1} << 20;
    worker.Open(user);
    const std::string farewell = other.Farewell();
    EXPECT_NE(farewell.find("left the job: it can't serve this job"), std::string::npos)
        << farewell;
    EXPECT_NE(farewell.find("SMDDP_STAGING_BYTES"), std::string::npos) << farewell;
    ASSERT_TRUE(Soon([&] { return server->stats().jobs == 1; }));
    worker.Call(0);
    EXPECT_REFUSED(worker.Meet(0), "--staging-bytes");
  }
  Worker next(*server, Rank(0, 2));
  next.MeetAll();
  StreamUser stranger = UsersOf(7, 2)[0];
  next.Open(stranger);
  stranger.shape.host = 9;
  next.Push(stranger, 0, BytesOf<float>({1}));
  next.Farewell();
  ASSERT_TRUE(Soon([&] { return server->stats().jobs == 2; }));
  next.Call(0);
  EXPECT_REFUSED(next.Meet(0), "a push as host 9 of 2");
}

TEST(ReducerServerTest, ALostWorkerLeavesTheOthers) {
  auto server = Serve();
  auto lost = std::make_unique<Worker>(*server, Rank(0));
  Worker other(*server, Rank(1));
  lost->MeetAll();
  other.MeetAll();
  const auto users = UsersOf(7, 2);
  lost->Open(users[0]);
  lost->Push(users[0], 0, BytesOf<float>({1}));
  ASSERT_TRUE(Soon([&] { return server->stats().summed.staging_bytes > 0; }));
  lost.reset();
  ASSERT_TRUE(Soon([&] { return server->stats().connections == 1; }));
  // Nobody is left who opened the stream; the job is not over.
  EXPECT_EQ(server->stats().summed.staging_bytes, 0u);
  EXPECT_EQ(server->stats().jobs, 0u);
  Worker again(*server, Rank(0));
  again.MeetAll();
  again.Open(users[0]);
  other.Open(users[1]);
  again.Push(users[0], 0, BytesOf<float>({1}));
  other.Push(users[1], 0, BytesOf<float>({2}));
  EXPECT_EQ(again.Sum(7, 0), BytesOf<float>({3}));
  EXPECT_EQ(other.Sum(7, 0), BytesOf<float>({3}));
}

TEST(ReducerServerTest, ASecondConnectionTakesTheFirstOnesPlace) {
  auto server = Serve();
  Worker half_dead(*server, Rank(0));
  half_dead.MeetAll();
  Worker again(*server, Rank(0));
  again.MeetAll();
  half_dead.Farewell();
  EXPECT_EQ(server->stats().connections, 1u);
}

TEST(ReducerServerTest, OnceEndsWithItsJob) {
  auto options = Options();
  options.once = true;
  auto server = Serve(options);
  EXPECT_FALSE(server->Wait(0.01));
  {
    Worker(*server, Rank(0)).MeetAll();
  }
  EXPECT_TRUE(server->Wait(kLong));
  EXPECT_EQ(server->stats().jobs, 1u);
}

TEST(ReducerServerTest, StopTellsTheWorkers) {
  auto server = Serve();
  Worker worker(*server, Rank(0, 1, 2, 2));
  worker.MeetAll();
  server->Stop();
  EXPECT_TRUE(server->Wait(kLong));
  server.reset();
  for (int lane : {0, 1})
    EXPECT_EQ(worker.Farewell(lane), "left the job: it was stopped");
}

TEST(ReducerServerTest, StrangersStayOut) {
  auto server = Serve();
  Worker stranger(*server, Rank(0), "another secret");
  stranger.Call(0, 0.2);
  EXPECT_FALSE(stranger.Meet(0).ok());
  EXPECT_GE(server->stats().refused, 1u);
  EXPECT_EQ(server->stats().connections, 0u);
}

TEST(ReducerServerTest, WhatItNeedsToStart) {
  auto options = Options();
  options.secret = "";
  EXPECT_REFUSED(ReducerServer::Start(options).status(), "needs the secret");
  options = Options();
  options.listen = "nowhere";
  EXPECT_REFUSED(ReducerServer::Start(options).status(), "'nowhere' is no address");
  auto server = Serve();
  options.listen = server->address();
  EXPECT_REFUSED(ReducerServer::Start(options).status(), server->address());
}

}  // namespace
}  // namespace smddp
