// SPDX-License-Identifier: Apache-2.0
// One lane of a dedicated reducer, for as long as a job lasts: a transport, a thread and
// a Reducer.
//
// Owned by a ReducerServer's job. Frames are handled on the lane's thread, under its
// lock; the other methods take the lock themselves, any thread.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>

#include "reducer/reducer.h"
#include "transport/lane.h"
#include "transport/transport.h"

namespace smddp {

class ServedLane final : private Transport::Receiver {
 public:
  struct Events {
    // A connection is gone; `why` as of Transport::Receiver. On the lane's thread, with
    // its lock.
    std::function<void(int peer, const std::string& why)> on_lost;
    // A peer broke the protocol, asked for too much, or the thread failed. As on_lost.
    std::function<void(const Status& why)> on_failed;
  };

  static Result<std::unique_ptr<ServedLane>> Start(size_t index, size_t staging_bytes,
                                                   double silence_seconds, Events events);
  ~ServedLane() override;

  // The peer's connection, in place of one that it may have. Returns whether it had one.
  bool AddPeer(int peer, UniqueFd socket);
  // Tells all peers why this is the end, waits at most `seconds` until they are told,
  // and ends the thread.
  void Stop(const std::string& farewell, double seconds);
  Reducer::Counters counters();

 private:
  explicit ServedLane(Events events) : events_(std::move(events)) {}

  Result<std::byte*> Accept(int peer, const FrameHeader& header) override;
  Status Received(int peer, const FrameHeader& header,
                  std::span<const std::byte> control) override;
  void Lost(int peer, const std::string& why) override;
  Status Take(int peer, const FrameHeader& header, std::span<const std::byte> control);
  Status Checked(Status status);

  const Events events_;
  std::set<int> peers_;
  std::unique_ptr<Reducer> reducer_;
  std::unique_ptr<Lane> lane_;
};

}  // namespace smddp
