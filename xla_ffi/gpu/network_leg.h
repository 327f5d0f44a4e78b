// SPDX-License-Identifier: Apache-2.0
// The way of one GPU's part of a collective over the network and back.
//
// The GPUs of the same rank on all hosts are a group of their own, the rail. A part goes
// segment by segment through a ring of pinned host memory, where each segment is an
// ordinary all-reduce of the engine over the rail; its order, deadlines and reducers are
// those of any other. The GPU's stream carries all of it: copy out, call the host, wait
// for a word in host memory, copy in. No thread waits.
//
// Owned by a GpuGroup, whose queue orders Enqueue(). Lives longer than what it submitted.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "collective/engine.h"
#include "device/gpu.h"

namespace smddp {

class NetworkLeg {
 public:
  struct Context {
    Engine* engine = nullptr;
    device::Gpu* gpu = nullptr;
    std::shared_ptr<const Group> rail;
    // Not ok once nothing may go to the other hosts any more: it might be no sum.
    std::function<Status()> check;
    // Takes the first reason why a segment did not come back, and all later ones.
    std::function<void(const Status&)> fail;
  };

  // A part in GPU memory, which is reduced in place.
  struct Part {
    char* data = nullptr;
    size_t elements = 0;
    DType dtype = DType::kF32;
    ReduceOp op = ReduceOp::kSum;
    std::optional<DType> wire;
    std::string label;
  };

  // `ring_bytes`: bound of pinned memory.
  static Result<std::unique_ptr<NetworkLeg>> Make(Context context, size_t ring_bytes);

  // Whether all hosts of a rail are well. Collective, blocking.
  static Status Meet(Engine& engine, const std::shared_ptr<const Group>& rail, bool well);

  Status Enqueue(const Part& part, device::StreamHandle stream);

  const std::shared_ptr<const Group>& rail() const { return context_.rail; }
  // Segments that came back, or never will.
  uint64_t segments_done() const { return done_.load(); }

 private:
  static constexpr size_t kRing = 8;

  // Of pinned memory.
  struct Slot {
    uint64_t* word = nullptr;  // One more than the segment that it brought last.
    char* out = nullptr;
    char* in = nullptr;
  };
  // A segment on its way, as the stream hands it to the host.
  struct Segment;

  NetworkLeg(Context context, size_t segment_bytes);

  Slot& SlotOf(uint64_t segment) { return slots_[segment % kRing]; }
  Status Send(const Part& part, uint64_t segment, size_t first, size_t elements,
              device::StreamHandle stream);
  Status Bring(const Part& part, uint64_t segment, size_t first, size_t elements,
               device::StreamHandle stream);
  void Submit(const Segment& segment);
  void Finish(uint64_t segment, size_t bytes, const Status& status);
  std::shared_ptr<const Signature> SignatureOf(const Segment& segment);

  const Context context_;
  const size_t segment_bytes_;
  const int64_t device_;  // This GPU in the rail.
  std::vector<Slot> slots_;
  uint64_t next_ = 0;  // The next segment's number; the queue's lock.
  OpInstance op_;      // This and the next: whoever submits, one at a time.
  std::unordered_map<uint64_t, std::shared_ptr<const Signature>> signatures_;
  std::atomic<uint64_t> done_{0};
};

}  // namespace smddp
