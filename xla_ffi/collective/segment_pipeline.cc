// SPDX-License-Identifier: Apache-2.0
#include "collective/host_all_reduce.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "collective/local_all_reduce.h"
#include "plan/partition.h"
#include "reduce/reduce.h"

namespace smddp {
namespace {

// Parts and pieces start on whole cache lines for every element size.
constexpr size_t kAlignElements = 64;
// Up to here one exchange beats two: everybody reads everything and reduces it all.
// Every member runs the same code over the same bytes, so the bits agree.
constexpr size_t kOneShotBytes = size_t{32} << 10;
// Splitting less than this among threads costs more than it saves.
constexpr size_t kSplitBytes = size_t{128} << 10;

}  // namespace

HostAllReduce::HostAllReduce(SegmentExchange& exchange, Workers& workers,
                             std::function<void(size_t)> ring)
    : exchange_(exchange), workers_(workers), ring_(std::move(ring)) {}

void HostAllReduce::Push(std::unique_ptr<Call> call) {
  const Signature& s = *call->signature;
  const size_t element = SizeOf(PartialType(s.dtype, s.op));
  Running running;
  running.segment_elements =
      exchange_.shape().slot_bytes / element / kAlignElements * kAlignElements;
  running.segments = SegmentCount(s.space.total(), running.segment_elements);
  running.first = next_segment_;
  running.one_shot = s.space.total() * element <= kOneShotBytes;
  running.direct = !running.one_shot && call->local.size() == 1 &&
                   PartialType(s.dtype, s.op) == s.dtype &&
                   s.kind != Collective::kAllGather;
  running.call = std::move(call);
  next_segment_ += running.segments;
  calls_.push_back(std::move(running));
}

bool HostAllReduce::Progress() {
  bool any = false;
  // The oldest segment first: it is what peers wait for, and it is still in the cache.
  while (SpreadNext() || ReduceNext() || StageNext()) any = true;
  return any;
}

std::unique_ptr<Call> HostAllReduce::PopDone() {
  At(spread_);  // Steps over calls without segments.
  return spread_.call > 0 ? Take() : nullptr;
}

std::unique_ptr<Call> HostAllReduce::Take() {
  std::unique_ptr<Call> call = std::move(calls_.front().call);
  calls_.pop_front();
  for (Cursor* cursor : {&stage_, &reduce_, &spread_}) {
    *cursor = cursor->call > 0 ? Cursor{cursor->call - 1, cursor->segment} : Cursor{};
  }
  return call;
}

HostAllReduce::Running* HostAllReduce::At(Cursor& cursor) {
  while (cursor.call < calls_.size()) {
    if (cursor.segment < calls_[cursor.call].segments) return &calls_[cursor.call];
    cursor = Cursor{cursor.call + 1, 0};
  }
  return nullptr;
}

std::optional<size_t> HostAllReduce::WaitsFor() const {
  if (calls_.empty() || spread_.call > 0) return std::nullopt;
  const Running& running = calls_.front();
  const uint64_t segment = running.first + spread_.segment;
  for (size_t i = 0; i < exchange_.shape().members; ++i) {
    const bool there = running.one_shot || !exchange_.AllStaged(segment)
                           ? exchange_.Staged(i, segment)
                           : exchange_.Reduced(i, segment);
    if (!there && i != exchange_.me()) return i;
  }
  return std::nullopt;
}

Range HostAllReduce::SegmentRange(const Running& running, size_t segment) const {
  return SegmentOf(running.call->signature->space.total(), running.segment_elements,
                   segment);
}

void HostAllReduce::RingAll() {
  for (size_t i = 0; i < exchange_.shape().members; ++i) {
    if (i != exchange_.me()) ring_(i);
  }
}

template <typename Work>
void HostAllReduce::Split(Range range, size_t element_size, Work&& work) {
  const size_t worth = range.size * element_size / kSplitBytes;
  const size_t parts = std::clamp<size_t>(worth, 1, workers_.size());
  if (parts == 1) {
    if (!range.empty()) work(range);
    return;
  }
  workers_.ParallelFor(parts, [&](size_t index) {
    const Range part = PartOf(range.size, parts, index, kAlignElements);
    if (!part.empty()) work(Range{range.offset + part.offset, part.size});
  });
}

Range HostAllReduce::PartOfMember(size_t size, size_t member) const {
  return PartOf(size, exchange_.shape().members, member, kAlignElements);
}

// `range` counts from the segment's start, as `slot` does; so in Spread.
void HostAllReduce::Stage(const Running& running, Range range, std::byte* slot) {
  const Signature& s = *running.call->signature;
  const size_t element = SizeOf(PartialType(s.dtype, s.op));
  const size_t start = SegmentRange(running, stage_.segment).offset;
  Split(range, element, [&](Range part) {
    CombineLocal(*running.call, {start + part.offset, part.size},
                 slot + part.offset * element, PartialType(s.dtype, s.op));
  });
}

bool HostAllReduce::StageNext() {
  Running* running = At(stage_);
  if (running == nullptr) return false;
  const uint64_t segment = running->first + stage_.segment;
  if (!exchange_.SlotFree(segment)) return false;
  const size_t size = SegmentRange(*running, stage_.segment).size;
  std::byte* slot = exchange_.Slot(exchange_.me(), segment);
  if (running->direct) {
    const Range mine = PartOfMember(size, exchange_.me());
    Stage(*running, {0, mine.offset}, slot);
    Stage(*running, {mine.end(), size - mine.end()}, slot);
  } else {
    Stage(*running, {0, size}, slot);
  }
  exchange_.SetStaged(segment);
  ++stage_.segment;
  // Only the last one to stage makes anything possible for the others.
  if (exchange_.AllStaged(segment)) RingAll();
  return true;
}

bool HostAllReduce::ReduceNext() {
  Running* running = At(reduce_);
  if (running == nullptr) return false;
  const uint64_t segment = running->first + reduce_.segment;
  if (!exchange_.AllStaged(segment)) return false;
  if (!running->one_shot) {
    const Call& call = *running->call;
    const size_t element = SizeOf(PartialType(call.signature->dtype, call.signature->op));
    const Range range = SegmentRange(*running, reduce_.segment);
    const size_t me = exchange_.me();
    const size_t members = exchange_.shape().members;
    const Range mine = PartOfMember(range.size, me);
    Split(mine, element * members, [&](Range part) {
      thread_local std::vector<const void*> sources;
      sources.clear();
      for (size_t i = 0; i < members; ++i) {
        const bool argument = running->direct && i == me;
        sources.push_back(argument ? nullptr
                                   : exchange_.Slot(i, segment) + part.offset * element);
      }
      CombineSources(call, {range.offset + part.offset, part.size}, sources,
                     exchange_.Slot(me, segment) + part.offset * element);
    });
  }
  exchange_.SetReduced(segment);
  ++reduce_.segment;
  if (running->one_shot) return true;
  if (exchange_.AllReduced(segment)) RingAll();
  // While it is in our first-level cache.
  Spread(*running, SegmentRange(*running, reduce_.segment - 1), exchange_.me(), segment);
  return true;
}

void HostAllReduce::Spread(const Running& running, Range range, size_t member,
                           uint64_t segment) {
  const Call& call = *running.call;
  const size_t element = SizeOf(PartialType(call.signature->dtype, call.signature->op));
  Split(PartOfMember(range.size, member), element * call.local.size(), [&](Range part) {
    const void* source = exchange_.Slot(member, segment) + part.offset * element;
    SpreadLocal(call, {range.offset + part.offset, part.size}, std::span(&source, 1),
                PartialType(call.signature->dtype, call.signature->op));
  });
}

bool HostAllReduce::SpreadNext() {
  Running* running = At(spread_);
  if (running == nullptr) return false;
  const uint64_t segment = running->first + spread_.segment;
  if (!exchange_.Reduced(exchange_.me(), segment)) return false;
  if (!running->one_shot && !exchange_.AllReduced(segment)) return false;
  const Range range = SegmentRange(*running, spread_.segment);
  const size_t members = exchange_.shape().members;
  if (running->one_shot) {
    std::vector<const void*> sources;
    for (size_t i = 0; i < members; ++i) sources.push_back(exchange_.Slot(i, segment));
    const Signature& s = *running->call->signature;
    SpreadLocal(*running->call, range, sources, PartialType(s.dtype, s.op));
  } else {
    for (size_t i = 0; i < members; ++i) {
      if (i != exchange_.me()) Spread(*running, range, i, segment);
    }
  }
  exchange_.SetConsumed(segment);
  ++spread_.segment;
  // Who waits for a free slot has slots()-1 staged segments behind it, so telling every
  // half ring is often enough.
  const size_t half = std::max<size_t>(exchange_.shape().slots / 2, 1);
  if ((segment + 1) % half == 0 && exchange_.AllConsumed(segment)) RingAll();
  return true;
}

}  // namespace smddp
