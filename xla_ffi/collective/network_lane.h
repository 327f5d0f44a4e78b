// SPDX-License-Identifier: Apache-2.0
// One lane of a worker: its transport, its co-located reducer, and the streams on it.
//
// Sorts what arrives: contributions go to the reducer, sums and votes to the stream's
// exchange, everything else into the mail, which the thread that holds the engine's
// progress lock fetches. Owned by Network; the lane's lock guards all but `lane`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>

#include "base/settings.h"
#include "collective/shard_exchange.h"
#include "reducer/reducer.h"
#include "transport/lane.h"

namespace smddp {

// A frame for a group, from the process that talks for a host.
struct Mail {
  FrameKind kind = FrameKind::kJoin;
  int from = 0;
  uint64_t segment = 0;
  uint64_t value = 0;
  std::string text;
};

class NetworkLane : private Transport::Receiver {
 public:
  struct Events {
    std::function<void(uint64_t stream, Mail mail)> on_mail;
    // A burst to the peer is there, see transport/probe.h.
    std::function<void(int peer, uint64_t burst)> on_probed;
    // `why` completes "rank N ..." or "reducer N ...".
    std::function<void(int peer, const std::string& why)> on_lost;
    // Called without the lock when frames have moved.
    std::function<void()> after;
    std::function<void(Status)> on_failed;
  };

  // Peers below `processes` are workers, the others dedicated reducers.
  static Result<std::unique_ptr<NetworkLane>> Make(size_t index, int processes,
                                                   const Settings& settings,
                                                   Events events);
  ~NetworkLane() override;

  Lane& lane() { return *lane_; }
  Transport& transport() { return lane_->transport(); }
  Reducer& reducer() { return *reducer_; }

  void Attach(uint64_t stream, ShardExchange* exchange);
  void Detach(uint64_t stream);
  void AddPeer(int peer, UniqueFd socket);

 private:
  NetworkLane(size_t index, int processes, Events events);
  Result<std::byte*> Accept(int peer, const FrameHeader& header) override;
  Status Received(int peer, const FrameHeader& header,
                  std::span<const std::byte> control) override;
  void Lost(int peer, const std::string& why) override;
  ShardExchange* ExchangeOf(uint64_t stream) const;

  const size_t index_;
  const int processes_;
  const Events events_;
  std::unordered_set<int> leaving_;  // Workers that have said goodbye.
  std::unordered_map<uint64_t, ShardExchange*> exchanges_;
  std::unique_ptr<Lane> lane_;
  std::unique_ptr<Reducer> reducer_;
};

}  // namespace smddp
