// SPDX-License-Identifier: Apache-2.0
// Connections from others that have not proved yet that they belong to the job.
//
// Their number, the bytes each may send and the time each may take are bounded. Owned by
// the greeter's loop, used on its thread only.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <string>

#include "base/status.h"
#include "base/unique_fd.h"
#include "transport/greeter.h"
#include "transport/handshake.h"

namespace smddp {

class Incoming {
 public:
  using Clock = std::chrono::steady_clock;

  // What is passed by reference outlives this. Sockets are watched with `epoll`, by their
  // descriptors.
  Incoming(UniqueFd listener, const Greeter::Options& options,
           const Greeter::Events& events, std::atomic<uint64_t>& refused, int epoll);

  // `fd` may be readable; nothing happens if it is not one of ours.
  void Serve(int fd);
  // Ends those that took too long. Returns when it wants to be called again.
  Clock::time_point Tick(Clock::time_point now);

 private:
  struct Pending {
    UniqueFd socket;
    std::string address;
    ListenerHandshake handshake;
    Clock::time_point since;
  };
  using Place = std::list<Pending>::iterator;
  // Kinds of refusal; the first of each is logged.
  enum Refusal { kSilent, kGarbage, kSecret, kOtherJob, kTurnedAway, kRefusals };

  void Accept(Clock::time_point now);
  bool MayAccept(Clock::time_point now) const;
  void WatchListener(bool watch);
  void Read(Place place);
  void Decide(Place place);
  Status Judge(const Identity& who, Refusal& kind) const;
  void Refuse(Place place, Refusal kind, const std::string& what);
  Clock::time_point GivesWay(const Pending& pending) const;

  const UniqueFd listener_;
  const Greeter::Options& options_;
  const Greeter::Events& events_;
  std::atomic<uint64_t>& refused_;
  const int epoll_;
  const Clock::duration patience_;
  std::list<Pending> pending_;  // The oldest first.
  bool listener_watched_ = false;
  Clock::time_point accept_after_;  // Not before: we are short of descriptors.
  bool logged_[kRefusals] = {};
};

}  // namespace smddp
