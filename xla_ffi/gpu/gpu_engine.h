// SPDX-License-Identifier: Apache-2.0
// The GPUs of this process: takes collectives from XLA's threads and puts them on
// streams.
//
// Beside the Engine, whose peers and network it uses. Prepare() may wait for the peers,
// up to the deadline; all else only enqueues. A watchdog looks after what is in flight.
// One per process, owned by `ffi/`; it is never destroyed while XLA may still call it,
// and not before the engine, which may owe it results.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "base/thread.h"
#include "collective/engine.h"
#include "device/gpu.h"
#include "gpu/gpu_group.h"
#include "gpu/gpu_queue.h"
#include "gpu/host_group.h"

namespace smddp {

class GpuEngine {
 public:
  GpuEngine(Engine& engine, device::Gpus& gpus);
  ~GpuEngine();

  // The global device id of each local ordinal.
  void Name(const std::map<int, int64_t>& ids);
  Result<int64_t> DeviceOf(int ordinal) const;

  using GroupPointer = std::shared_ptr<const Group>;
  // Makes a group's memory with the peers, the first time; collective. Says nothing of
  // other groups: a call that is not made leaves its peers alone.
  Status Prepare(const GroupPointer& group);
  // Every error here may also be one that an earlier call left: results come before it is
  // known what became of them.
  Status AllReduce(int ordinal, const GroupPointer& group, const GpuCall& call,
                   device::StreamHandle stream);
  // The same on a stream of our own, and the wait for it; see GpuQueue.
  Status Start(int ordinal, const GroupPointer& group, const GpuCall& call,
               device::StreamHandle stream);
  Status Done(int ordinal, const std::string& label, const void* result,
              device::StreamHandle stream);

  // An error that no call has returned yet, once; ok if there is none.
  Status TakeUntold();
  // Fails what is in flight, here and at the peers.
  void Abort(const std::string& reason);
  // The same, and takes no more.
  void Leave(const std::string& reason);
  // Waits until nothing is in flight; false at the deadline.
  bool Drain(double seconds);

  struct Stats {
    uint64_t calls = 0;   // Of every GPU of this process.
    uint64_t failed = 0;  // Groups that came to an end.
    uint64_t in_flight = 0;
    uint64_t staging_bytes = 0;  // GPU memory that this process gives.
  };
  Stats stats() const;

 private:
  Result<GpuQueue*> QueueOf(int ordinal);
  Result<device::Gpu*> GpuOf(int64_t device) const;
  std::vector<HostGroup*> groups() const;
  HostGroup* GroupOf(const GroupPointer& group);
  void NoteFailure(HostGroup& group, const Status& why);
  // Enqueues a call by put(queue, enqueue).
  template <typename Put>
  Status Run(int ordinal, const GroupPointer& group, const GpuCall& call,
             device::StreamHandle stream, Put put);
  Status Aborted(const std::string& reason) const;
  // The caller of a collective has been told.
  void Forget(const Status& told);
  // What the caller of a collective is told: how it began, or what an earlier one left.
  Status Tell(const Status& status, GpuQueue& queue, device::StreamHandle stream);
  void WakeWatchdog();
  void Watch();
  uint64_t in_flight() const;

  Engine& engine_;
  device::Gpus& gpus_;
  std::atomic<uint64_t> calls_{0}, failed_{0};

  mutable std::mutex mutex_;
  std::map<int, int64_t> device_of_;  // By ordinal.
  std::map<int, std::unique_ptr<GpuQueue>> queues_;
  std::unordered_map<uint64_t, std::unique_ptr<HostGroup>> groups_;
  Status left_;  // Not ok: why we take no more.

  std::mutex untold_mutex_;
  std::deque<Status> untold_;

  std::mutex watch_mutex_;
  std::condition_variable watch_;
  std::atomic<bool> watching_{false};  // Or asleep.
  std::atomic<bool> stopping_{false};
  Thread watchdog_;
};

}  // namespace smddp
