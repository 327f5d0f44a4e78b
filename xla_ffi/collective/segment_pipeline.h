// SPDX-License-Identifier: Apache-2.0
// Runs the all-reduces of one group of processes through the host stage, segment by
// segment.
//
// Calls go in in the order that the group agreed on and come out in the same order.
// Each segment is staged (the local devices' sum goes into our slot), reduced (the part
// of it that we own, over all slots, which is spread at once) and spread (the others'
// parts, into the local devices' results); several segments are under way at once, and no
// step ever waits. Owned by a GroupStream, under the engine's progress lock.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "base/range.h"
#include "collective/call.h"
#include "collective/workers.h"
#include "host/segment_exchange.h"

namespace smddp {

class HostAllReduce {
 public:
  // `ring(member)` wakes the progress thread of a member that may sleep.
  HostAllReduce(SegmentExchange& exchange, Workers& workers,
                std::function<void(size_t member)> ring);

  void Push(std::unique_ptr<Call> call);
  // Does what can be done now; returns whether anything was.
  bool Progress();
  // The next call that is complete, or nothing.
  std::unique_ptr<Call> PopDone();

  bool empty() const { return calls_.empty(); }
  const Call& front() const { return *calls_.front().call; }
  // The first member that `front()` waits for, if any.
  std::optional<size_t> WaitsFor() const;
  // Takes the oldest call, done or not.
  std::unique_ptr<Call> Take();

 private:
  struct Running {
    std::unique_ptr<Call> call;
    uint64_t first = 0;  // Number of its first segment.
    size_t segments = 0;
    size_t segment_elements = 0;
    bool one_shot = false;  // Small: every member reduces all of it.
    bool direct = false;    // Our own part is read from the argument, not a slot.
  };
  // The next segment that a step has to handle: a call, and a segment within it.
  struct Cursor {
    size_t call = 0;
    size_t segment = 0;
  };

  bool StageNext();
  bool ReduceNext();
  bool SpreadNext();
  // The call under `cursor`, skipping calls whose segments are all done; or nothing.
  Running* At(Cursor& cursor);
  void RingAll();
  Range SegmentRange(const Running& running, size_t segment) const;
  // Member's part of a segment of `size` elements.
  Range PartOfMember(size_t size, size_t member) const;
  void Stage(const Running& running, Range range, std::byte* slot);
  void Spread(const Running& running, Range range, size_t member, uint64_t segment);
  // Runs work(part of `range`) in parallel where it is worth it.
  template <typename Work>
  void Split(Range range, size_t element_size, Work&& work);

  SegmentExchange& exchange_;
  Workers& workers_;
  const std::function<void(size_t)> ring_;
  std::deque<Running> calls_;
  uint64_t next_segment_ = 0;
  Cursor stage_;
  Cursor reduce_;
  Cursor spread_;
};

}  // namespace smddp
