// SPDX-License-Identifier: Apache-2.0
#include "collective/segment_pipeline.h"

#include <algorithm>
#include <utility>

#include "collective/local_stage.h"
#include "collective/wire_types.h"
#include "plan/partition.h"
#include "reduce/reduce.h"

namespace smddp {
namespace {

// Parts and pieces start on whole cache lines for every element size.
constexpr size_t kAlignElements = 64;
// Up to here one exchange beats two: everybody reads everything and reduces it all.
// Every member runs the same code over the same bytes, so the bits agree.
constexpr size_t kOneShotBytes = size_t{32} << 10;
// Up to here a segment is not worth more than one push.
constexpr size_t kRotateBytes = size_t{8} << 10;
// Splitting less than this among threads costs more than it saves.
constexpr size_t kSplitBytes = size_t{128} << 10;

}  // namespace

SegmentPipeline::SegmentPipeline(Stages stages, const Topology& topology)
    : stages_(std::move(stages)), topology_(topology) {}

void SegmentPipeline::Push(std::unique_ptr<Call> call) {
  const Signature& s = *call->signature;
  const bool hosts = topology_.hosts() > 1;
  Running running;
  running.element = SizeOf(PartialType(s.dtype, s.op));
  running.segment_elements = stages_.host->shape().slot_bytes / running.element /
                             kAlignElements * kAlignElements;
  running.segments = SegmentCount(s.space.total(), running.segment_elements);
  running.first = next_segment_;
  const size_t bytes = s.space.total() * running.element;
  running.one_shot = !hosts && bytes <= kOneShotBytes;
  running.rotates = hosts && bytes <= kRotateBytes;
  running.direct = !running.one_shot && call->local.size() == 1 &&
                   PartialType(s.dtype, s.op) == s.dtype &&
                   s.kind != Collective::kAllGather;
  if (hosts) {
    const bool one_each = call->group->members().size() == topology_.hosts();
    const WireTypes types = WireTypesOf(s, one_each);
    running.in = types.in;
    running.out = types.out;
    if (s.kind != Collective::kAllReduce) CutByBlocks(running, *call);
    const bool bare = alone() && call->local.size() == 1;
    running.lends = bare && types.in == s.dtype && s.kind != Collective::kAllGather;
    running.lands = bare && types.out == s.dtype;
  }
  running.call = std::move(call);
  next_segment_ += running.segments;
  calls_.push_back(std::move(running));
}

void SegmentPipeline::CutByBlocks(Running& running, const Call& call) {
  for (const Member& member : call.group->members()) {
    running.owners.push_back(topology_.HostOf(member.process));
  }
  running.segment_elements = std::max(
      running.segment_elements / topology_.hosts() / kAlignElements * kAlignElements,
      kAlignElements);
  const size_t block = call.signature->space.total() / running.owners.size();
  running.segments =
      SegmentCount(block, running.segment_elements) * running.owners.size();
}

bool SegmentPipeline::Progress() {
  bool any = false;
  // The oldest segment first: it is what peers wait for, and it is still in the cache.
  while (SpreadNext() || ReceiveNext() || ReduceNext() || StageNext()) any = true;
  return any;
}

std::unique_ptr<Call> SegmentPipeline::PopDone() {
  At(spread_);  // Steps over calls without segments.
  if (spread_.call == 0) return nullptr;
  const Running& running = calls_.front();
  if (stages_.network != nullptr && running.lends) {
    stages_.network->Keep(running.pushed_first, running.pushed_last);
  }
  ++done_;
  return Take();
}

std::unique_ptr<Call> SegmentPipeline::Take() {
  std::unique_ptr<Call> call = std::move(calls_.front().call);
  calls_.pop_front();
  for (Cursor* cursor : {&stage_, &reduce_, &receive_, &spread_}) {
    *cursor = cursor->call > 0 ? Cursor{cursor->call - 1, cursor->segment} : Cursor{};
  }
  return call;
}

SegmentPipeline::Running* SegmentPipeline::At(Cursor& cursor) {
  while (cursor.call < calls_.size()) {
    if (cursor.segment < calls_[cursor.call].segments) return &calls_[cursor.call];
    cursor = Cursor{cursor.call + 1, 0};
  }
  return nullptr;
}

std::optional<size_t> SegmentPipeline::WaitsForMember() const {
  if (calls_.empty() || spread_.call > 0) return std::nullopt;
  const SegmentExchange& host = *stages_.host;
  const Running& running = calls_.front();
  const uint64_t number = running.first + spread_.segment;
  for (size_t i = 0; i < host.shape().members; ++i) {
    const bool there = running.one_shot || !host.AllStaged(number)
                           ? host.Staged(i, number)
                           : host.Reduced(i, number);
    if (!there && i != host.me()) return i;
  }
  return std::nullopt;
}

std::string SegmentPipeline::WaitsForNetwork() const {
  if (exchanged_.empty() || !exchanged_.front().number) return {};
  return stages_.network->WaitsFor(*exchanged_.front().number);
}

Range SegmentPipeline::SegmentRange(const Running& running, size_t segment) const {
  const size_t total = running.call->signature->space.total();
  if (running.owners.empty()) return SegmentOf(total, running.segment_elements, segment);
  const size_t blocks = running.owners.size();
  const size_t block = total / blocks;
  Range range = SegmentOf(block, running.segment_elements, segment / blocks);
  range.offset += segment % blocks * block;
  return range;
}

void SegmentPipeline::RingAll() {
  for (size_t i = 0; i < stages_.host->shape().members; ++i) {
    if (i != stages_.host->me()) stages_.ring(i);
  }
}

template <typename Work>
void SegmentPipeline::Split(Range range, size_t element_size, Work&& work) {
  const size_t worth = range.size * element_size / kSplitBytes;
  const size_t parts = std::clamp<size_t>(worth, 1, stages_.workers->size());
  if (parts == 1) {
    if (!range.empty()) work(range);
    return;
  }
  stages_.workers->ParallelFor(parts, [&](size_t index) {
    const Range part = PartOf(range.size, parts, index, kAlignElements);
    if (!part.empty()) work(Range{range.offset + part.offset, part.size});
  });
}

// Over several hosts only the members on a rail own parts: each host has one there.
Range SegmentPipeline::PartOfMember(const Running& running, uint64_t number, size_t size,
                                    size_t member) const {
  const size_t owners =
      topology_.hosts() > 1 ? topology_.rails() : stages_.host->shape().members;
  if (member >= owners) return {size, 0};
  if (running.rotates) {
    return number % owners == member ? Range{0, size} : Range{size, 0};
  }
  return PartOf(size, owners, member, kAlignElements);
}

// `range` counts from the segment's start, as `slot` does; so in Spread.
void SegmentPipeline::Stage(const Running& running, Range range, std::byte* slot) {
  const Signature& s = *running.call->signature;
  const size_t start = SegmentRange(running, stage_.segment).offset;
  Split(range, running.element, [&](Range part) {
    CombineLocal(*running.call, {start + part.offset, part.size},
                 slot + part.offset * running.element, PartialType(s.dtype, s.op));
  });
}

bool SegmentPipeline::StageNext() {
  Running* running = At(stage_);
  if (running == nullptr) return false;
  SegmentExchange& host = *stages_.host;
  const uint64_t number = running->first + stage_.segment;
  if (!host.SlotFree(number)) return false;
  const size_t size = SegmentRange(*running, stage_.segment).size;
  std::byte* slot = host.Slot(host.me(), number);
  if (running->direct) {
    const Range mine = PartOfMember(*running, number, size, host.me());
    Stage(*running, {0, mine.offset}, slot);
    Stage(*running, {mine.end(), size - mine.end()}, slot);
  } else if (!alone()) {
    Stage(*running, {0, size}, slot);
  }
  host.SetStaged(number);
  ++stage_.segment;
  // Only the last one to stage makes anything possible for the others.
  if (host.AllStaged(number)) RingAll();
  return true;
}

bool SegmentPipeline::ReduceNext() {
  Running* running = At(reduce_);
  if (running == nullptr) return false;
  SegmentExchange& host = *stages_.host;
  const uint64_t number = running->first + reduce_.segment;
  if (!host.AllStaged(number)) return false;
  const Range range = SegmentRange(*running, reduce_.segment);
  const Range mine = PartOfMember(*running, number, range.size, host.me());
  if (stages_.network != nullptr) {
    if (!Exchange(*running, number, range, mine)) return false;
  } else {
    if (!running->one_shot) {
      std::byte* const slot = host.Slot(host.me(), number);
      const Signature& s = *running->call->signature;
      ReducePart(*running, number, range, mine, slot + mine.offset * running->element,
                 PartialType(s.dtype, s.op));
    }
    exchanged_.push_back({});
  }
  ++reduce_.segment;
  return true;
}

// The host's sum of `mine` (counted from the segment's start), as `type` into `target`.
void SegmentPipeline::ReducePart(const Running& running, uint64_t number, Range range,
                                 Range mine, std::byte* target, DType type) {
  const Call& call = *running.call;
  const SegmentExchange& host = *stages_.host;
  const size_t members = host.shape().members;
  Split(mine, running.element * members, [&](Range part) {
    const Range positions = {range.offset + part.offset, part.size};
    std::byte* const out = target + (part.offset - mine.offset) * SizeOf(type);
    if (alone()) return CombineLocal(call, positions, out, type);
    thread_local std::vector<const void*> sources;
    sources.clear();
    for (size_t i = 0; i < members; ++i) {
      const bool argument = running.direct && i == host.me();
      sources.push_back(argument ? nullptr
                                 : host.Slot(i, number) + part.offset * running.element);
    }
    CombineSources(call, positions, sources, out, type);
  });
}

// Pushes our part of a segment to the reducers; false if the window is full.
bool SegmentPipeline::Exchange(Running& running, uint64_t number, Range range,
                               Range mine) {
  NetworkStage& network = *stages_.network;
  if (running.pushed_last == 0) running.pushed_first = network.next();
  if (mine.empty()) {
    exchanged_.push_back({});
    return true;
  }
  if (!network.CanPush()) return false;
  const Call& call = *running.call;
  const Range positions = {range.offset + mine.offset, mine.size};
  std::byte* const slot = stages_.host->Slot(stages_.host->me(), number);
  ShardExchange::Segment segment;
  segment.op = call.signature->op;
  segment.in = running.in;
  segment.out = running.out;
  segment.elements = mine.size;
  segment.result = slot + mine.offset * running.element;
  std::byte* const result = running.lands ? ResultAt(call, positions) : nullptr;
  if (result != nullptr) segment.result = result;
  if (running.lends) segment.data = ArgumentAt(call, positions);
  if (!running.owners.empty()) {
    segment.owner = running.owners[(number - running.first) % running.owners.size()];
    const bool ours = *segment.owner == topology_.my_host();
    const bool gather = call.signature->kind == Collective::kAllGather;
    segment.adds = ours || !gather;
    segment.needs = ours || gather;
  }
  if (segment.data == nullptr) {
    std::byte* const contribution = network.Slot();
    if (segment.adds) ReducePart(running, number, range, mine, contribution, running.in);
    segment.data = contribution;
  }
  exchanged_.push_back({network.Push(std::move(segment)), result != nullptr});
  running.pushed_last = network.next();
  return true;
}

bool SegmentPipeline::ReceiveNext() {
  Running* running = At(receive_);
  if (running == nullptr || exchanged_.empty()) return false;
  const Exchanged& front = exchanged_.front();
  if (front.number && !stages_.network->Done(*front.number)) return false;
  FinishReduced(*running, running->first + receive_.segment,
                SegmentRange(*running, receive_.segment), front.landed);
  exchanged_.pop_front();
  ++receive_.segment;
  return true;
}

void SegmentPipeline::FinishReduced(const Running& running, uint64_t number, Range range,
                                    bool landed) {
  SegmentExchange& host = *stages_.host;
  host.SetReduced(number);
  if (running.one_shot) return;
  if (host.AllReduced(number)) RingAll();
  // While it is in our first-level cache.
  if (!landed) Spread(running, range, host.me(), number);
}

void SegmentPipeline::Spread(const Running& running, Range range, size_t member,
                             uint64_t number) {
  const Call& call = *running.call;
  const Signature& s = *call.signature;
  const DType type = topology_.hosts() > 1 ? running.out : PartialType(s.dtype, s.op);
  const Range owned = PartOfMember(running, number, range.size, member);
  const std::byte* const start =
      stages_.host->Slot(member, number) + owned.offset * running.element;
  Split(owned, SizeOf(type) * call.local.size(), [&](Range part) {
    const void* source = start + (part.offset - owned.offset) * SizeOf(type);
    SpreadLocal(call, {range.offset + part.offset, part.size}, std::span(&source, 1),
                type);
  });
}

bool SegmentPipeline::SpreadNext() {
  Running* running = At(spread_);
  if (running == nullptr) return false;
  SegmentExchange& host = *stages_.host;
  const uint64_t number = running->first + spread_.segment;
  if (!host.Reduced(host.me(), number)) return false;
  if (!running->one_shot && !host.AllReduced(number)) return false;
  const Range range = SegmentRange(*running, spread_.segment);
  const size_t members = host.shape().members;
  if (running->one_shot) {
    std::vector<const void*> sources;
    for (size_t i = 0; i < members; ++i) sources.push_back(host.Slot(i, number));
    const Signature& s = *running->call->signature;
    SpreadLocal(*running->call, range, sources, PartialType(s.dtype, s.op));
  } else {
    for (size_t i = 0; i < members; ++i) {
      if (i != host.me()) Spread(*running, range, i, number);
    }
  }
  host.SetConsumed(number);
  ++spread_.segment;
  // Who waits for a free slot has slots()-1 staged segments behind it, so telling every
  // half ring is often enough.
  const size_t half = std::max<size_t>(host.shape().slots / 2, 1);
  if ((number + 1) % half == 0 && host.AllConsumed(number)) RingAll();
  return true;
}

}  // namespace smddp
