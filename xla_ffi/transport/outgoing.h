// SPDX-License-Identifier: Apache-2.0
// One peer that is to be met: connects to it again and again until it answers rightly.
//
// Owned by the greeter, used on its thread only.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/greeter.h"
#include "transport/handshake.h"

namespace smddp {

class Outgoing {
 public:
  using Clock = std::chrono::steady_clock;

  struct Target {
    std::string address;
    Identity expected;
    uint32_t lane = 0;
    std::string name;    // For messages.
    double seconds = 0;  // <= 0: for ever.
  };

  // `options` outlives this. The socket is watched with `epoll`, by its descriptor.
  Outgoing(Target target, const Greeter::Options& options, int epoll);
  ~Outgoing();

  // Does what can be done now. Whether it came to an end, good or bad.
  bool Move(Clock::time_point now);
  // When Move is worth a call even if the socket is not ready.
  Clock::time_point next() const;

  // After the end:
  const Status& outcome() const { return *outcome_; }
  const Identity& peer() const { return handshake_->listener(); }
  UniqueFd TakeSocket();

 private:
  Status Begin();
  Status Advance();
  Status CheckListener() const;
  void Watch(int operation, uint32_t events);
  void CloseSocket();
  void Retry(const Status& why, Clock::time_point now);
  void GiveUp();

  const Target target_;
  const Greeter::Options& options_;
  const int epoll_;
  const Clock::time_point give_up_;
  Clock::duration pause_;

  UniqueFd socket_;  // Invalid: between two attempts.
  bool connected_ = false;
  std::optional<ConnectorHandshake> handshake_;
  Clock::time_point until_;  // Of this attempt, or of the pause after it.
  std::string last_failure_ = "not tried yet";
  std::optional<Status> outcome_;
};

}  // namespace smddp
