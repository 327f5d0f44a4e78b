// SPDX-License-Identifier: Apache-2.0
// This process on the network: its listener, its lanes, and who of the others is there.
//
// Start() meets the job over the key-value store, listens, and connects to the dedicated
// reducers and to this process's counterparts on the other hosts; connections to more of
// their workers are made when a group needs them. Owned by Streams. Methods are called by
// the thread that holds the engine's progress lock; events come from the network's
// threads, without any lock of ours but a lane's.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/settings.h"
#include "base/status.h"
#include "collective/network_lane.h"
#include "collective/nic_speeds.h"
#include "comm/kv_store.h"
#include "comm/roster.h"
#include "transport/greeter.h"

namespace smddp {

class Network {
 public:
  struct Events {
    // A worker on another host is gone. `why` completes "rank N ...".
    std::function<void(int process, std::string why)> on_lost;
    // Frames have moved: there may be something to do. Called without locks.
    std::function<void()> wake;
  };

  struct Counters {
    Transport::Counters wire;   // Of all lanes.
    Reducer::Counters reduced;  // By this process's co-located reducers.
    uint64_t refused = 0;       // Connections of strangers.
  };

  // Collective over the processes of the job, which are on several hosts.
  static Result<std::unique_ptr<Network>> Start(const Roster& roster,
                                                const Settings& settings,
                                                KeyValueStore& store,
                                                const Deadline& deadline, Events events);
  ~Network();
  // Ends the threads, after which there are no events. Idempotent.
  void Stop();

  size_t lanes() const { return lanes_.size(); }
  NetworkLane& lane(size_t index) { return *lanes_[index]; }
  size_t shard_bytes() const { return settings_.shard_bytes; }
  // Peer number of dedicated reducer 0, and the NICs' relative speeds.
  int first_reducer() const { return roster_.processes(); }
  double NicOf(int process) const;
  std::vector<double> ReducerNics() const;

  // Asks for the connections to a worker on another host; Reached says when they are.
  void Reach(int process);
  bool Reached(int process);
  // A frame for a group's process elsewhere, over the first lane.
  void Send(int process, FrameHeader header, const std::string& text);
  // What came for a group, and what its exchanges have to say. Any thread posts.
  void Post(uint64_t stream, Mail mail);
  std::deque<Mail> TakeMail(uint64_t stream);
  // The notice that a worker elsewhere posted last, and the stream by which it came.
  std::optional<std::pair<uint64_t, Mail>> NoticeOf(int process);
  int process() const { return roster_.process(); }

  // "rank 3 (on node7)".
  std::string Describe(int process) const { return roster_.Describe(process); }
  // The same with its address, or a dedicated reducer's.
  std::string Name(int peer) const;
  // Tells every peer that we leave and why, sends what is left, closes. Without locks.
  void Leave(const std::string& reason, double seconds);
  Counters counters();
  // See Transport::CloseInForkedChild.
  void CloseInForkedChild() {
    for (auto& lane : lanes_) lane->transport().CloseInForkedChild();
  }

 private:
  Network(const Roster& roster, const Settings& settings, Events events);
  Status MakeLanes();
  Status Listen(KeyValueStore& store);
  Status AgreeOnJob(KeyValueStore& store, const Deadline& deadline);
  Status TradeAddresses(KeyValueStore& store, const Deadline& deadline);
  void AwaitCounterparts();
  bool Awaits(int process);
  Status MeetPeers(const Deadline& deadline);
  Status Admit(const Identity& peer) const;
  void OnPeer(const Identity& peer, uint64_t token, UniqueFd socket);
  void OnFailed(uint64_t token, const Status& why);
  void OnLost(size_t lane, int peer, const std::string& why);
  void ConnectReducer(size_t reducer, size_t lane, double seconds);
  Identity Me() const;

  const Roster roster_;
  const Settings settings_;
  const Events events_;
  NicSpeeds nic_speeds_;
  std::vector<double> weights_;  // Of hosts, then reducers. Empty: all alike.
  std::string secret_;
  uint64_t job_ = 0;
  std::vector<std::string> addresses_;  // By process; empty for those of this host.
  std::set<int> reached_for_;           // Workers that we have asked for.

  std::mutex mutex_;  // Guards what follows; the last one taken.
  std::condition_variable changed_;
  std::unordered_map<uint64_t, std::deque<Mail>> mail_;
  std::map<int, std::pair<uint64_t, Mail>> notices_;  // By process.
  std::set<std::pair<int, size_t>> awaited_;          // By Start(): counterpart and lane.
  std::vector<size_t> reducer_lanes_;  // Connected lanes, by dedicated reducer.
  std::vector<bool> reducer_warned_;
  std::optional<Status> meeting_failed_;
  bool met_ = false;  // Start() is over.
  bool leaving_ = false;

  std::vector<std::unique_ptr<NetworkLane>> lanes_;
  std::unique_ptr<Greeter> greeter_;  // Its thread ends first.
};

}  // namespace smddp
