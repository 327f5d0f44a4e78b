// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_group.h"

#include <algorithm>
#include <utility>

#include "base/hash.h"

namespace smddp {
namespace {

using device::Algorithm;
using device::Kind;
using device::Tensor;

constexpr size_t kAlignment = 256;  // As GPU memory is allocated.

constexpr size_t RoundUp(size_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

constexpr size_t kFlagsBytes = RoundUp(sizeof(device::Flags));

uint64_t Load(uint64_t& word) {
  return std::atomic_ref(word).load(std::memory_order_acquire);
}

std::vector<Tensor> TensorsOf(const GpuCall& call) {
  std::vector<Tensor> tensors;
  const FusedSpace& space = call.signature->space;
  tensors.resize(space.tensors());
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = {call.from[i], call.to[i], 0};
  space.ForEachPiece({0, space.total()}, [&](const Piece& piece) {
    tensors[piece.tensor].count = piece.in_tensor.size;
  });
  return tensors;
}

// What ranks must agree about.
uint32_t TagOf(const GpuCall& call) {
  const uint64_t hash = Hash64().Add(call.key).Add(call.signature->hash).value();
  return static_cast<uint32_t>(hash >> 32);
}

}  // namespace

// Half a staging buffer holds a reduce-scatter of as many bytes, of which each rank gets
// its part: twice as large at most, where 16-bit floats become float32.
GpuGroup::Room::Room(size_t bytes, size_t ranks, bool several_hosts) {
  const size_t left = bytes - std::min(bytes, kFlagsBytes + kAlignment);
  half_bytes = several_hosts ? left * ranks / (2 * ranks + 2) : left / 2;
  half_bytes = std::max(half_bytes / kAlignment, ranks) * kAlignment;
  shared_bytes = kFlagsBytes + 2 * half_bytes;
  if (several_hosts) part_bytes = RoundUp(2 * half_bytes / ranks);
}

void GpuGroup::Map(const std::vector<char*>& shared) {
  for (size_t rank = 0; rank < shared.size(); ++rank) {
    setup_.group.flags[rank] = reinterpret_cast<device::Flags*>(shared[rank]);
    setup_.group.staging[rank] = shared[rank] + kFlagsBytes;
  }
}

Status GpuGroup::Enqueue(const GpuCall& call, device::StreamHandle stream) {
  if (call.signature->space.total() == 0) return {};
  const std::vector<Tensor> tensors = TensorsOf(call);
  const uint64_t collective = enqueued_.fetch_add(1) + 1;
  device::Gpu& gpu = *setup_.gpu;
  Remember(call, collective);
  SMDDP_RETURN_IF_ERROR(gpu.Write(&setup_.words->started, collective, stream));
  const Status enqueued = setup_.leg ? EnqueueOverHosts(call, tensors, stream)
                                     : EnqueueOnHost(call, tensors, stream);
  // Also where it was enqueued in part: it is over then, and the group with it.
  SMDDP_RETURN_IF_ERROR(gpu.Write(&setup_.words->finished, collective, stream));
  return enqueued;
}

Status GpuGroup::EnqueueOnHost(const GpuCall& call, const std::vector<Tensor>& tensors,
                               device::StreamHandle stream) {
  const Kind kind{call.signature->dtype, call.signature->dtype};
  const Algorithm algorithm = device::ChooseAllReduce(call.signature->bytes());
  for (const auto& some : CutIntoCalls(setup_.group, algorithm, kind, tensors)) {
    SMDDP_RETURN_IF_ERROR(
        Reduce(call, kind, MakeAllReduce(setup_.group, ++number_, algorithm, kind, some),
               stream));
  }
  return {};
}

// Sums of 16-bit floats stay in float32 between the stages; a host's only GPU has no sum
// yet, and its values travel as they are.
Status GpuGroup::EnqueueOverHosts(const GpuCall& call, const std::vector<Tensor>& tensors,
                                  device::StreamHandle stream) {
  const Signature& s = *call.signature;
  const DType partial = setup_.group.ranks == 1 ? s.dtype : PartialType(s.dtype, s.op);
  const Kind there{s.dtype, partial};
  const Kind back{partial, s.dtype};
  // Both ways in the same pieces, of tensors whose results have the user's type.
  const Kind pieces{s.dtype, s.dtype};
  const device::Group& group = setup_.group;
  for (const auto& some :
       CutIntoCalls(group, Algorithm::kReduceScatter, pieces, tensors)) {
    SMDDP_RETURN_IF_ERROR(
        Reduce(call, there, MakeReduceScatter(group, ++number_, there, some, setup_.part),
               stream));
    NetworkLeg::Part part;
    part.data = setup_.part;
    part.elements = PartElements(there, some, group.ranks, group.rank);
    part.dtype = partial;
    part.op = s.op;
    part.wire = s.wire;
    part.label = call.label;
    SMDDP_RETURN_IF_ERROR(setup_.leg->Enqueue(part, stream));
    auto gather = MakeAllGather(group, ++number_, back, setup_.part, some);
    SMDDP_RETURN_IF_ERROR(gather.status());
    gather->tag = TagOf(call);
    SMDDP_RETURN_IF_ERROR(setup_.gpu->AllGather(back.in, back.out, *gather, stream));
  }
  return {};
}

Status GpuGroup::Reduce(const GpuCall& call, const Kind& kind, Result<device::Call> made,
                        device::StreamHandle stream) {
  SMDDP_RETURN_IF_ERROR(made.status());
  made->tag = TagOf(call);
  return setup_.gpu->Reduce(call.signature->op, kind.in, kind.out, *made, stream);
}

void GpuGroup::Abort() {
  std::atomic_ref(setup_.words->watch.abort).store(1, std::memory_order_release);
}

std::optional<device::GaveUp> GpuGroup::gave_up() const {
  const uint64_t packed = Load(setup_.words->watch.gave_up);
  if (packed == 0) return std::nullopt;
  return device::GaveUp::Unpack(packed);
}

uint64_t GpuGroup::finished() const { return Load(setup_.words->finished); }

GpuGroup::Progress GpuGroup::progress() const {
  Progress progress;
  // In this order: what has started since does not look unfinished.
  progress.started = Load(setup_.words->started);
  progress.finished = finished();
  if (setup_.leg) progress.segments = setup_.leg->segments_done();
  return progress;
}

void GpuGroup::Remember(const GpuCall& call, uint64_t collective) {
  const uint64_t finished = this->finished();
  const std::lock_guard lock(mutex_);
  // What was given up is asked for later.
  while (!in_flight_.empty() && in_flight_.front().collective <= finished && !gave_up()) {
    in_flight_.pop_front();
  }
  in_flight_.push_back({collective, number_ + 1, call.label, call.signature});
}

std::string GpuGroup::InFlight::Describe() const {
  return label + ": " + signature->text + " (" + std::to_string(signature->bytes()) +
         " bytes)";
}

std::string GpuGroup::DescribeCall(uint64_t number) const {
  const std::lock_guard lock(mutex_);
  const InFlight* last = nullptr;
  for (const InFlight& each : in_flight_) {
    if (each.first_call <= number) last = &each;
  }
  return last != nullptr ? last->Describe() : "a collective";
}

std::string GpuGroup::DescribeStarted() const {
  const uint64_t started = Load(setup_.words->started);
  const std::lock_guard lock(mutex_);
  for (const InFlight& each : in_flight_) {
    if (started <= each.collective) return each.Describe();
  }
  return "a collective";
}

}  // namespace smddp
