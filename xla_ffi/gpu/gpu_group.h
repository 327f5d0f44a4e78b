// SPDX-License-Identifier: Apache-2.0
// One GPU of this process in one group: numbers its calls and enqueues their kernels.
//
// On one host a call is a one-shot or a two-shot all-reduce. Over several hosts the
// host's GPUs reduce-scatter, each takes its part over the network (network_leg.h), and
// all gather. Owned by a HostGroup. Enqueue() is called with the GPU's queue locked; the
// watchdog calls the rest.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "collective/call.h"
#include "device/gpu.h"
#include "device/make_call.h"
#include "gpu/network_leg.h"

namespace smddp {

// What XLA asks of one GPU.
struct GpuCall {
  std::shared_ptr<const Signature> signature;
  std::string label;
  uint64_t key = 0;  // Which collective of the program, alike on every process.
  std::vector<const void*> from;
  std::vector<void*> to;
};

// In host memory that the GPU writes to.
struct alignas(64) HostWords {
  device::Watch watch;
  uint64_t started;   // The collective that the stream came to last,
  uint64_t finished;  // and the one that it left last.
};

class GpuGroup {
 public:
  struct Setup {
    device::Gpu* gpu = nullptr;
    device::Group group;  // Among the GPUs of this host.
    HostWords* words = nullptr;
    // Over several hosts only.
    std::unique_ptr<NetworkLeg> leg;
    char* part = nullptr;  // GPU memory for what leaves this GPU in one call.
  };

  // Of `bytes` of staging: what is for flags and staging, which peers map, and what for
  // the part.
  struct Room {
    Room(size_t bytes, size_t ranks, bool several_hosts);
    size_t half_bytes = 0;
    size_t shared_bytes = 0;
    size_t part_bytes = 0;
    size_t bytes() const { return shared_bytes + part_bytes; }
  };

  explicit GpuGroup(Setup setup) : setup_(std::move(setup)) {}
  // Where this GPU sees the shared memory of each member. Before anything else.
  void Map(const std::vector<char*>& shared);

  Status Enqueue(const GpuCall& call, device::StreamHandle stream);

  NetworkLeg* leg() const { return setup_.leg.get(); }
  // Ends the kernel's waits, now and later.
  void Abort();
  std::optional<device::GaveUp> gave_up() const;
  uint64_t in_flight() const { return enqueued_.load() - finished(); }

  // Where the stream is; equal as long as nothing moves.
  struct Progress {
    uint64_t finished = 0;
    uint64_t started = 0;
    uint64_t segments = 0;
    bool operator==(const Progress&) const = default;
    bool waits() const { return started > finished; }
  };
  Progress progress() const;

  // The collective that a kernel's call, or the stream, belongs to: in words.
  std::string DescribeCall(uint64_t number) const;
  std::string DescribeStarted() const;

 private:
  struct InFlight {
    uint64_t collective;
    uint64_t first_call;  // Of its kernels.
    std::string label;
    std::shared_ptr<const Signature> signature;

    std::string Describe() const;
  };

  uint64_t finished() const;
  void Remember(const GpuCall& call, uint64_t collective);
  Status EnqueueOnHost(const GpuCall& call, const std::vector<device::Tensor>& tensors,
                       device::StreamHandle stream);
  Status EnqueueOverHosts(const GpuCall& call, const std::vector<device::Tensor>& tensors,
                          device::StreamHandle stream);
  Status Reduce(const GpuCall& call, const device::Kind& kind, Result<device::Call> made,
                device::StreamHandle stream);

  Setup setup_;
  uint64_t number_ = 0;  // Of the latest kernel.
  std::atomic<uint64_t> enqueued_{0};
  mutable std::mutex mutex_;
  std::deque<InFlight> in_flight_;
};

}  // namespace smddp
