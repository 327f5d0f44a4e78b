// SPDX-License-Identifier: Apache-2.0
// The cross-process side of the engine: the mesh of this host's processes, the network
// to other hosts, and one GroupStream per group that met over them.
//
// Owned by the engine, whose progress lock guards every method but those marked. The
// mesh's watcher thread and the network's threads only leave messages here and ring.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "collective/call.h"
#include "collective/group_stream.h"
#include "collective/network.h"
#include "collective/workers.h"
#include "comm/device_mail.h"
#include "comm/kv_store.h"
#include "comm/local_mesh.h"

namespace smddp {

class Streams {
 public:
  // Ways to the job's other processes.
  struct Peers {
    std::vector<std::string> host_ids;  // By process.
    std::unique_ptr<LocalMesh> mesh;
    std::unique_ptr<Network> network;  // Null where the job has one host.
  };
  struct Wake {
    // Rings for the progress thread; any thread calls it.
    std::function<void()> ring;
    // Makes progress here and now if nobody does; a network thread calls it, which is
    // awake already.
    std::function<void()> go;
  };

  Streams(const Settings& settings, Workers& workers, FinishCall finish, Wake wake);

  // Meets the job's other processes. Without the lock, and before anything else.
  Result<Peers> Meet(int process, int processes, KeyValueStore& store);
  void SetPeers(Peers peers) { peers_ = std::move(peers); }
  LocalMesh* mesh() const { return peers_.mesh.get(); }
  Network* network() const { return peers_.network.get(); }

  // Host ids by process; empty until SetPeers.
  const std::vector<std::string>& host_ids() const { return peers_.host_ids; }
  // What the other processes of this host told about their GPUs. Any thread.
  DeviceMail& device_mail() { return device_mail_; }

  void Add(std::unique_ptr<Call> call);
  // Fails what is and will be of one group, here and at the peers.
  void FailGroup(const std::shared_ptr<const Group>& group, const std::string& reason);
  // Does what can be done now; returns whether anything was.
  bool Progress();
  void CheckDeadlines();
  // Fails all that is in flight, here and at the peers.
  void Abort(const std::string& reason);
  // Fails all, tells the peers that we leave, and takes no more.
  void Leave(const std::string& reason);

  // Shared memory that this process provides. Any thread.
  uint64_t staging_bytes() const { return staging_bytes_.load(); }

 private:
  GroupStream* StreamOf(const std::shared_ptr<const Group>& group);
  std::string Refusal() const;
  void HandleLosses();
  size_t NextSlotBytes(const GroupStream& stream) const;
  std::optional<BlockOffer> TakeOffer(uint64_t group, int process);

  const Settings settings_;
  Workers& workers_;
  const FinishCall finish_;
  const Wake wake_;
  std::atomic<uint64_t> staging_bytes_{0};

  DeviceMail device_mail_;
  std::mutex messages_mutex_;
  std::map<std::pair<uint64_t, int>, BlockOffer> offers_;
  std::vector<std::pair<int, std::string>> losses_;

  Peers peers_;
  std::string left_;  // Why we are no more in the job.
  std::unordered_map<uint64_t, std::unique_ptr<GroupStream>> streams_;
  std::map<int, std::string> lost_;  // By process: why, also for groups to come.
};

}  // namespace smddp
