// SPDX-License-Identifier: Apache-2.0
// Runs the collectives of one group of processes through the host and the network stage,
// segment by segment.
//
// Calls go in in the order that the group agreed on and come out in the same order. Each
// segment is staged (the local devices' sum goes into our slot), reduced (the part of it
// that we own, over all slots of this host), exchanged with the other hosts if there are
// any, and spread (all parts, into the local devices' results). Several segments are
// under way at once, and no step ever waits. Owned by a GroupStream, under the engine's
// progress lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/range.h"
#include "collective/call.h"
#include "collective/network_stage.h"
#include "collective/workers.h"
#include "host/segment_exchange.h"
#include "plan/topology.h"

namespace smddp {

class SegmentPipeline {
 public:
  struct Stages {
    SegmentExchange* host = nullptr;
    // Null where all members are on this host, or where we are on no rail.
    NetworkStage* network = nullptr;
    Workers* workers = nullptr;
    // Wakes the progress thread of a member of this host that may sleep.
    std::function<void(size_t member)> ring;
  };

  // `topology` outlives this.
  SegmentPipeline(Stages stages, const Topology& topology);

  void Push(std::unique_ptr<Call> call);
  // Does what can be done now; returns whether anything was.
  bool Progress();
  // The next call that is complete, or nothing.
  std::unique_ptr<Call> PopDone();

  bool empty() const { return calls_.empty(); }
  const Call& front() const { return *calls_.front().call; }
  // Calls that are through, over the life of the group.
  uint64_t done() const { return done_; }
  // The first member of this host that `front()` waits for, if any.
  std::optional<size_t> WaitsForMember() const;
  // What of the network `front()` waits for, in words; empty if for nothing.
  std::string WaitsForNetwork() const;
  // Takes the oldest call, done or not. The network stage is closed, if it is not done.
  std::unique_ptr<Call> Take();

 private:
  struct Running {
    std::unique_ptr<Call> call;
    uint64_t first = 0;  // Number of its first segment.
    size_t segments = 0;
    size_t segment_elements = 0;
    size_t element = 0;       // Bytes of one in a slot.
    DType in = DType::kF32;   // Between hosts: of contributions,
    DType out = DType::kF32;  // and of sums.
    bool one_shot = false;    // Small, on one host: every member reduces all of it.
    bool direct = false;      // Our own part is read from the argument, not a slot.
    bool rotates = false;     // Small, over hosts: one member owns all of a segment.
    bool lends = false;       // Over hosts: contributions may lie in the argument,
    bool lands = false;       // and sums in the result.
    // Over hosts, of a scatter or a gather: the host of each block. The segments go
    // through all blocks in turn, lest all hosts push to one reducer at a time.
    std::vector<size_t> owners;
    // Its part of the network stage's numbers.
    uint64_t pushed_first = 0;
    uint64_t pushed_last = 0;
  };
  // The next segment that a step has to handle: a call, and a segment within it.
  struct Cursor {
    size_t call = 0;
    size_t segment = 0;
  };
  // A segment between reduce and spread: where the network stage is with our part.
  struct Exchanged {
    std::optional<uint64_t> number;  // None where our part is empty.
    bool landed = false;             // The sum goes straight into the result.
  };

  void CutByBlocks(Running& running, const Call& call);
  bool StageNext();
  bool ReduceNext();
  bool ReceiveNext();
  bool SpreadNext();
  // The call under `cursor`, skipping calls whose segments are all done; or nothing.
  Running* At(Cursor& cursor);
  void RingAll();
  bool alone() const { return stages_.host->shape().members == 1; }
  Range SegmentRange(const Running& running, size_t segment) const;
  // Which part of segment number `number`, of `size` elements, a member owns.
  Range PartOfMember(const Running& running, uint64_t number, size_t size,
                     size_t member) const;
  void Stage(const Running& running, Range range, std::byte* slot);
  void ReducePart(const Running& running, uint64_t number, Range range, Range mine,
                  std::byte* target, DType type);
  bool Exchange(Running& running, uint64_t number, Range range, Range mine);
  void FinishReduced(const Running& running, uint64_t number, Range range, bool landed);
  void Spread(const Running& running, Range range, size_t member, uint64_t number);
  // Runs work(part of `range`) in parallel where it is worth it.
  template <typename Work>
  void Split(Range range, size_t element_size, Work&& work);

  const Stages stages_;
  const Topology& topology_;
  std::deque<Running> calls_;
  std::deque<Exchanged> exchanged_;
  uint64_t next_segment_ = 0;
  uint64_t done_ = 0;
  Cursor stage_;
  Cursor reduce_;
  Cursor receive_;
  Cursor spread_;
};

}  // namespace smddp
