// SPDX-License-Identifier: Apache-2.0
// How fast the network interfaces of the job's hosts are, measured when it starts.
//
// The first process of every host sends to that of another, all at the same time, host h
// to h + 1, then to h + 2, h + 4 and so on: a host counts as fast as the fastest of its
// links, so that slow neighbours hide nobody. Then the fastest host sends to the
// dedicated reducers, one after the other. Everybody reads all figures in the key-value
// store.
//
// Owned by Network, whose Start() calls Measure; the lanes' threads call the others.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "comm/kv_store.h"
#include "comm/roster.h"

namespace smddp {

class Network;

class NicSpeeds {
 public:
  NicSpeeds(Network& network, const Roster& roster, size_t reducers)
      : network_(network), roster_(roster), reducers_(reducers) {}

  // Collective. Speeds relative to the fastest, of each host, then of each reducer; the
  // same numbers everywhere. Rank 0 logs them.
  Result<std::vector<double>> Measure(KeyValueStore& store, const Deadline& deadline);

  // A lane has carried a burst to the peer.
  void Answered(int peer, uint64_t burst);
  // `why` completes "rank N ..." or "reducer N ...".
  void Lost(int peer, const std::string& why);

 private:
  Status MeasureRing(size_t stride, std::vector<double>& speeds, KeyValueStore& store,
                     const Deadline& deadline);
  Status MeasureReducers(std::vector<double>& speeds, KeyValueStore& store,
                         const Deadline& deadline);
  // Measures the link to a peer for all to read.
  Status Publish(const std::string& link, int peer, KeyValueStore& store,
                 const Deadline& deadline);
  Result<double> Read(const std::string& link, int from, KeyValueStore& store,
                      const Deadline& deadline) const;
  Result<double> SpeedTo(int peer, const Deadline& deadline);
  Status CarryBurst(size_t bytes, const Deadline& deadline);
  Status Failure(const std::string& why) const;

  Network& network_;
  const Roster& roster_;
  const size_t reducers_;

  std::mutex mutex_;  // Taken after a lane's lock, never before it.
  std::condition_variable changed_;
  int peer_ = -1;  // Whose answers count. This and `burst_`: set by the measuring thread.
  uint64_t burst_ = 0;
  size_t answers_ = 0;  // To this burst: one for each lane.
  std::optional<std::string> lost_;
};

// Bytes per second in proportion to the fastest, to three digits.
std::vector<double> RelativeSpeeds(const std::vector<double>& speeds);

}  // namespace smddp
