// SPDX-License-Identifier: Apache-2.0
// This process's GPUs in one group: how they come together with their peers, and how the
// group ends when something goes wrong.
//
// A group that failed stays failed: kernels that wait give up and leave 0xFF, what is
// enqueued later is refused, and the peers are told. Other groups go on. Owned by the
// GpuEngine; any thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "collective/engine.h"
#include "device/gpu.h"
#include "gpu/gpu_group.h"
#include "gpu/gpu_places.h"
#include "gpu/peer_memory.h"

namespace smddp {

class HostGroup {
 public:
  struct Context {
    Engine* engine = nullptr;
    // The GPU of a device of this process.
    std::function<Result<device::Gpu*>(int64_t device)> gpu_of;
    // Hears once that the group failed while somebody may rely on its results.
    std::function<void(HostGroup&, const Status&)> on_failure;
  };

  HostGroup(std::shared_ptr<const Group> group, Context context);

  // Makes it, together with the other processes; who calls meanwhile waits for that.
  // Later it only says whether the group can go on, which is to be asked before each
  // call.
  Status Prepare();
  // On a stream of the device's GPU, with its queue locked.
  Status Enqueue(int64_t device, const GpuCall& call, device::StreamHandle stream);
  // Ok, or why the group is at an end.
  Status failure() const;
  // Ends the group, and tells those peers who do not know.
  enum class Tell { kNobody, kOtherHosts, kAll };
  void Fail(const Status& why, Tell whom);
  // Looks for what went wrong. The watchdog calls it while something is in flight.
  void Look(Deadline::Clock::time_point now);
  uint64_t in_flight() const;
  // GPU memory that this process gives for it.
  uint64_t staging_bytes() const;

 private:
  // A GPU of this process, and since when its stream has not moved.
  struct Local {
    int64_t device = 0;
    uint32_t rank = 0;
    std::unique_ptr<GpuGroup> gpu;
    GpuGroup::Progress seen;
    Deadline::Clock::time_point since;
  };

  Status Make();
  Status MakeLocals(const Deadline& deadline);
  Result<GpuGroup::Setup> SetupOf(device::Gpu& gpu, uint32_t rank,
                                  const GpuGroup::Room& room);
  Result<std::unique_ptr<NetworkLeg>> MakeLeg(device::Gpu& gpu, uint32_t rank);
  Status MeetHosts(const Status& mine);
  // Whether the group has failed by now: by what a kernel says, or a peer.
  bool LookAtGpus();
  bool HearPeers();
  void LookAtPeers();
  void LookAtTime(Local& local, Deadline::Clock::time_point now);
  std::string WaitedIn(const std::string& call) const;
  Status WhyGaveUp(const Local& local, const device::GaveUp& gave_up) const;
  std::string Lost() const;
  std::string NameOf(int process) const;
  std::string NameOf(const Member& member) const;
  std::vector<int> Peers() const;  // Processes of this host with members.

  const std::shared_ptr<const Group> group_;
  const Context context_;
  const uint64_t id_;  // Under which the processes of the host tell about it.

  std::mutex making_;
  bool made_ = false;  // Under `making_`.
  // Do not change once made.
  GpuPlaces places_;
  std::vector<Local> locals_;  // In rank order; what changes in them is the watchdog's.
  std::atomic<bool> ready_{false};
  std::atomic<uint64_t> news_seen_{0};

  std::atomic<bool> failed_{false};
  mutable std::mutex failure_mutex_;
  Status failure_;
};

}  // namespace smddp
