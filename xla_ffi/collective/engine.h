// SPDX-License-Identifier: Apache-2.0
// The engine of one process: takes collectives from XLA's threads, finishes them on
// its own.
//
// Submit never waits. A group whose devices are all in this process is reduced by the
// workers (or at once, if small). A group that spans processes goes to its GroupStream,
// which the progress thread drives. One Engine per process, owned by `ffi/`; it is never
// destroyed while XLA may still call it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "base/settings.h"
#include "base/status.h"
#include "base/thread.h"
#include "collective/call.h"
#include "collective/completions.h"
#include "collective/rendezvous.h"
#include "collective/streams.h"
#include "collective/workers.h"
#include "comm/kv_store.h"
#include "host/doorbell.h"

namespace smddp {

class Engine {
 public:
  explicit Engine(const Settings& settings);
  ~Engine();

  // Joins the job's other processes; collective. At most once, before any Submit of a
  // group that spans processes. Blocks the calling thread.
  Status Connect(int process, int processes, KeyValueStore& store);
  // Says goodbye to the peers and fails what is in flight between processes.
  void Disconnect(const std::string& reason);
  // Fails everything that is in flight, here and (by its message) at the peers.
  void Abort(const std::string& reason);
  // Waits until nothing is in flight; false at the deadline.
  bool Drain(double seconds);

  // One local device reached one collective. `participant.done` is always called.
  void Submit(OpInstance& op, int64_t run_id, int64_t device,
              const std::shared_ptr<const Group>& group,
              const std::shared_ptr<const Signature>& signature, Participant participant);

  // For those who reduce between the GPUs of this process and its peers, and come here
  // for the network. Empty, or null, in a job of one process or before Connect().
  const std::vector<std::string>& host_ids() const { return streams_.host_ids(); }
  LocalMesh* mesh() const { return streams_.mesh(); }
  DeviceMail& device_mail() { return streams_.device_mail(); }
  const Settings& settings() const { return settings_; }
  // Fails what is and will be of one group, here and at the peers. Waits for nothing.
  void FailGroup(std::shared_ptr<const Group> group, std::string reason);

  struct Stats {
    uint64_t calls = 0;       // Collectives begun.
    uint64_t bytes = 0;       // Of one device's arguments, summed over calls.
    uint64_t host_calls = 0;  // Of these: between processes.
    uint64_t failed = 0;
    uint64_t in_flight = 0;
    uint64_t staging_bytes = 0;  // Shared memory that this process provides.
    Network::Counters network;   // All zero where the job has one host.
  };
  Stats stats() const;

  // In a forked child of this process: makes every use an error and lets the peers
  // still see the parent's death. Nothing else of the engine may be used there.
  void AfterForkInChild();

 private:
  void RunLocal(std::unique_ptr<Call> call);
  void RunHost(std::unique_ptr<Call> call);
  // Tells the participants; the one on whose thread we are, if any, at once.
  void Finish(std::unique_ptr<Call> call, const Status& status, bool on_submitter);
  void CallBegins();
  void CallEnds();
  // Fails calls that some local device never joined.
  void FailIncomplete(bool all, StatusCode code, const std::string& why);
  void ProgressLoop();
  // With progress_mutex_ held: does what can be done now.
  bool Progress();
  void Housekeeping();
  bool busy() const;
  void WakeProgress();
  // Makes progress on this thread unless another does, which is then woken.
  void GoOn();

  const Settings settings_;
  std::atomic<bool> forked_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<bool> polls_{true};  // Whether to poll before sleeping.
  std::atomic<uint64_t> calls_{0}, bytes_{0}, host_calls_{0}, failed_{0};

  mutable std::mutex in_flight_mutex_;
  std::condition_variable none_in_flight_;
  uint64_t in_flight_ = 0;

  // Handed to the progress thread.
  std::mutex inbox_mutex_;
  std::vector<std::unique_ptr<Call>> inbox_;
  std::string abort_reason_;
  std::vector<std::pair<std::shared_ptr<const Group>, std::string>> failing_;

  // Their threads touch what stands above and end before it goes.
  Completions completions_;
  Workers workers_;
  Rendezvous rendezvous_;

  // Whoever holds it may drive the streams.
  std::mutex progress_mutex_;
  const Call* submitting_ = nullptr;  // The call whose submitter drives them right now.
  Streams streams_;

  Doorbell own_doorbell_;  // Until there is a mesh page.
  std::atomic<Doorbell*> doorbell_{&own_doorbell_};
  Thread progress_thread_;
};

}  // namespace smddp
