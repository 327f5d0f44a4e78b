// SPDX-License-Identifier: Apache-2.0
// The network side of one group of processes that spans hosts, for one rail.
//
// Joins the counterparts on the other hosts, deals segments to the lanes in turn, and
// carries the group's messages. Owned by a GroupStream, under the engine's progress lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "collective/network.h"
#include "collective/shard_exchange.h"
#include "host/process_page.h"
#include "plan/topology.h"

namespace smddp {

class NetworkStage {
 public:
  // Segments under way at once, over all lanes.
  static constexpr size_t kWindow = 32;

  // `segment_bytes`: the largest contribution of this rail to a segment.
  NetworkStage(Network& network, const Topology& topology, uint64_t group,
               size_t segment_bytes);
  ~NetworkStage();

  // The largest segment of the host stage for this group, the same in all its processes:
  // shards as large as the settings say, in a window that fits the staging.
  static size_t SegmentBytes(const Network& network, const Topology& topology,
                             size_t staging_bytes);

  // Goes on with joining; whether all hosts have joined.
  bool Ready();
  // A host that has not joined yet.
  std::optional<size_t> Missing() const;

  // Pushed segments are numbered 0, 1, 2, ...
  bool CanPush() const;
  std::byte* Slot() const;  // For the next segment's contribution.
  uint64_t Push(ShardExchange::Segment segment);
  bool Done(uint64_t number) const;
  uint64_t next() const { return next_; }
  // The caller's memory behind segments `first` to `last` goes.
  void Keep(uint64_t first, uint64_t last);
  // All of it goes, and nothing is pushed any more. Idempotent.
  void Close();
  // Which reducer segment `number` waits for, in words.
  std::string WaitsFor(uint64_t number) const;

  // A message to our counterpart on a host, or to all of them.
  void Send(size_t host, FrameKind kind, uint64_t segment, uint64_t value,
            const std::string& text);
  void Tell(FrameKind kind, uint64_t segment, uint64_t value, const std::string& text);
  // What came meanwhile; `from` is a process.
  std::deque<Mail> TakeMail();
  // What our counterpart on another host waits in, be it in this group or another.
  NoticeBoard::Notice NoticeOf(int process) const;

 private:
  uint64_t Stream(size_t lane) const;
  void Join();
  template <typename Body>
  void WithLock(size_t lane, Body&& body);

  Network& network_;
  const Topology& topology_;
  const uint64_t group_;
  std::vector<std::unique_ptr<ShardExchange>> exchanges_;  // By lane.
  std::vector<bool> told_;    // By host: whether we have joined there.
  std::vector<bool> joined_;  // By host: whether it has joined here.
  std::deque<Mail> mail_;
  bool ready_ = false;
  bool closed_ = false;
  uint64_t next_ = 0;
};

}  // namespace smddp
