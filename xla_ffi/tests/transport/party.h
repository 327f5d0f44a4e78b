// SPDX-License-Identifier: Apache-2.0
// A greeter that keeps what happened to it.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "transport/greeter.h"

namespace smddp {

inline Identity Worker(uint32_t process, uint64_t job = 5) {
  return {.process = process, .processes = 4, .lanes = 2, .job = job};
}

inline Identity Reducer() { return {.role = Identity::Role::kReducer, .lanes = 2}; }

class Party {
 public:
  struct Met {
    Identity peer;
    uint64_t token;
    UniqueFd socket;
  };

  explicit Party(const Identity& me, const std::string& address = "127.0.0.1:0",
                 const std::string& secret = "s3cret", double handshake_seconds = 5,
                 int pending = 64) {
    Greeter::Events events;
    events.admit = [this](const Identity& peer) { return Admit(peer); };
    events.on_peer = [this](const Identity& peer, uint64_t token, UniqueFd socket) {
      std::lock_guard lock(mutex_);
      met_.push_back({peer, token, std::move(socket)});
      changed_.notify_all();
    };
    events.on_failed = [this](uint64_t token, const Status& why) {
      std::lock_guard lock(mutex_);
      failed_[token] = why;
      changed_.notify_all();
    };
    auto started = Greeter::Start(*ResolveAddress(address),
                                  {me, secret, handshake_seconds, pending}, events);
    EXPECT_TRUE(started.ok()) << started.status().message();
    greeter_ = std::move(*started);
  }

  Greeter& greeter() { return *greeter_; }
  std::string address() const { return greeter_->address().Text(); }

  void Connect(uint64_t token, const std::string& address, const Identity& expected,
               double seconds = 20, uint32_t lane = 1) {
    greeter_->Connect(token, address, expected, lane, "rank X at " + address, seconds);
  }

  void AnswerNext(std::vector<Status> answers) {
    std::lock_guard lock(mutex_);
    answers_ = std::move(answers);
  }

  // The n-th peer that was met; waits for it.
  Met& Peer(size_t n = 0) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20),
                                  [&] { return met_.size() > n; }));
    return met_.at(n);
  }
  Status Failure(uint64_t token) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(20),
                                  [&] { return failed_.contains(token); }));
    return failed_[token];
  }
  bool nothing_happened() {
    std::lock_guard lock(mutex_);
    return met_.empty() && failed_.empty();
  }
  bool Refused(uint64_t count) {
    const Deadline deadline = Deadline::After(20);
    while (greeter_->refused() < count && !deadline.Passed()) ::usleep(1000);
    return greeter_->refused() >= count;
  }

 private:
  Status Admit(const Identity&) {
    std::lock_guard lock(mutex_);
    if (answers_.empty()) return Status();
    Status next = answers_.front();
    answers_.erase(answers_.begin());
    return next;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Met> met_;
  std::map<uint64_t, Status> failed_;
  std::vector<Status> answers_;
  std::unique_ptr<Greeter> greeter_;
};

inline bool Says(const Status& status, const std::string& text) {
  return status.message().find(text) != std::string::npos;
}

// Reads until the other end closes; what it said.
inline std::string ReadToEnd(int socket) {
  std::string all;
  const Deadline deadline = Deadline::After(20);
  while (!deadline.Passed()) {
    pollfd wait = {socket, POLLIN, 0};
    ::poll(&wait, 1, 1000);
    char buffer[512];
    const ssize_t bytes = ::recv(socket, buffer, sizeof(buffer), MSG_DONTWAIT);
    if (bytes > 0) all.append(buffer, static_cast<size_t>(bytes));
    if (bytes == 0 || (bytes < 0 && errno == ECONNRESET)) return all;
  }
  ADD_FAILURE() << "was not closed";
  return all;
}

}  // namespace smddp
