// SPDX-License-Identifier: Apache-2.0
// The collectives of one GPU: one order for all groups and streams, and streams of our
// own for those that were started beside the program.
//
// A kernel that waits for its peers holds multiprocessors. Two at a time could each keep
// the other's peer from running, so what is enqueued later runs later. One per local GPU,
// owned by the GpuEngine; any thread.
#pragma once

#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "device/gpu.h"

namespace smddp {

class GpuQueue {
 public:
  // Puts work on a stream; called with the queue locked.
  using Enqueue = std::function<Status(device::StreamHandle)>;

  explicit GpuQueue(device::Gpu& gpu) : gpu_(gpu) {}

  device::Gpu& gpu() const { return gpu_; }

  // Enqueues on `stream`, behind all collectives before.
  Status Run(device::StreamHandle stream, const Enqueue& enqueue);
  // The same on a stream of ours, behind what `stream` has now. `result` is where the
  // first result will lie, by which Done() finds it.
  Status Start(const void* result, device::StreamHandle stream, const Enqueue& enqueue);
  // Holds `stream` back until what was started for `result` is done.
  Status Done(const std::string& label, const void* result, device::StreamHandle stream);
  // Holds `stream` back until all that was enqueued is done.
  Status FollowAll(device::StreamHandle stream);

 private:
  Status RunLocked(device::StreamHandle stream, const Enqueue& enqueue);
  Result<device::StreamHandle> TakeStream();

  device::Gpu& gpu_;
  std::mutex mutex_;
  // Behind the collective that was enqueued last, also when its own stream is gone.
  device::StreamHandle order_ = nullptr;
  device::StreamHandle last_ = nullptr;
  std::vector<device::StreamHandle> free_;  // Of ours.
  std::unordered_map<const void*, device::StreamHandle> started_;
};

}  // namespace smddp
