// SPDX-License-Identifier: Apache-2.0
#include "gpu/network_leg.h"

#include <algorithm>
#include <cstring>
#include <future>
#include <utility>

#include "base/hash.h"

namespace smddp {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kWordBytes = 64;  // A cache line of its own.

// The one member of the rail that is of this process.
int64_t MineOf(const Group& rail) {
  const auto& members = rail.members();
  return std::find_if(
             members.begin(), members.end(),
             [&](const Member& m) { return rail.LocalIndex(m.device).has_value(); })
      ->device;
}

}  // namespace

struct NetworkLeg::Segment {
  NetworkLeg* leg;
  uint64_t number;
  size_t elements;
  DType dtype;
  ReduceOp op;
  std::optional<DType> wire;
  std::string label;

  size_t bytes() const { return elements * SizeOf(dtype); }
};

NetworkLeg::NetworkLeg(Context context, size_t segment_bytes)
    : context_(std::move(context)),
      segment_bytes_(segment_bytes),
      device_(MineOf(*context_.rail)) {
  op_.key = Hash64().Add("rail of GPUs").Add(context_.rail->id()).value();
  op_.label = "a group of GPUs";
}

Result<std::unique_ptr<NetworkLeg>> NetworkLeg::Make(Context context, size_t ring_bytes) {
  // A slot has room for a segment on its way out, and for its sum.
  const size_t segment_bytes = std::max(ring_bytes / kRing / 2 / kPage * kPage, kPage);
  const size_t slot_bytes = kWordBytes + 2 * segment_bytes;
  auto memory = context.gpu->AllocateHost(kRing * slot_bytes);
  SMDDP_RETURN_IF_ERROR(memory.status());
  std::unique_ptr<NetworkLeg> leg(new NetworkLeg(std::move(context), segment_bytes));
  for (size_t i = 0; i < kRing; ++i) {
    char* const slot = *memory + i * slot_bytes;
    leg->slots_.push_back({reinterpret_cast<uint64_t*>(slot), slot + kWordBytes,
                           slot + kWordBytes + segment_bytes});
  }
  return leg;
}

Status NetworkLeg::Meet(Engine& engine, const std::shared_ptr<const Group>& rail,
                        bool well) {
  const int32_t mine = well ? 0 : 1;
  int32_t failed = 0;
  std::promise<Status> met;
  Participant participant;
  participant.inputs = {&mine};
  participant.outputs = {&failed};
  participant.done = [&](const Status& status) { met.set_value(status); };
  OpInstance op;
  op.key = Hash64().Add("meeting of a rail").Add(rail->id()).value();
  op.label = "preparing GPUs";
  const auto signature = std::make_shared<const Signature>(
      ReduceOp::kSum, DType::kS32, std::vector<size_t>{1},
      std::vector<std::string>{"[1]"});
  engine.Submit(op, 0, MineOf(*rail), rail, signature, std::move(participant));
  SMDDP_RETURN_IF_ERROR(met.get_future().get());
  if (failed == 0) return {};
  return Status(StatusCode::kAborted,
                "another host could not prepare its GPUs for a group of " +
                    rail->Describe() + "; its own processes say why");
}

Status NetworkLeg::Enqueue(const Part& part, device::StreamHandle stream) {
  const size_t most = segment_bytes_ / SizeOf(part.dtype);
  const uint64_t first = next_;
  const uint64_t end = first + SegmentCount(part.elements, most);
  const auto range = [&](uint64_t s) {
    return SegmentOf(part.elements, most, s - first);
  };
  const auto bring = [&](uint64_t s) {
    return Bring(part, s, range(s).offset, range(s).size, stream);
  };
  for (; next_ < end; ++next_) {
    if (next_ >= first + kRing) SMDDP_RETURN_IF_ERROR(bring(next_ - kRing));
    SMDDP_RETURN_IF_ERROR(
        Send(part, next_, range(next_).offset, range(next_).size, stream));
  }
  for (uint64_t s = std::max(first, end - std::min<uint64_t>(kRing, end)); s < end; ++s) {
    SMDDP_RETURN_IF_ERROR(bring(s));
  }
  return {};
}

Status NetworkLeg::Send(const Part& part, uint64_t segment, size_t first, size_t elements,
                        device::StreamHandle stream) {
  const size_t size = SizeOf(part.dtype);
  SMDDP_RETURN_IF_ERROR(context_.gpu->Copy(SlotOf(segment).out, part.data + first * size,
                                           elements * size, stream));
  auto on_host = std::make_unique<Segment>(
      Segment{this, segment, elements, part.dtype, part.op, part.wire, part.label});
  SMDDP_RETURN_IF_ERROR(context_.gpu->CallHost(
      [](void* argument) {
        const std::unique_ptr<Segment> owned(static_cast<Segment*>(argument));
        owned->leg->Submit(*owned);
      },
      on_host.get(), stream));
  // The stream has it now.
  [[maybe_unused]] const Segment* given = on_host.release();
  return {};
}

Status NetworkLeg::Bring(const Part& part, uint64_t segment, size_t first,
                         size_t elements, device::StreamHandle stream) {
  const size_t size = SizeOf(part.dtype);
  const Slot& slot = SlotOf(segment);
  SMDDP_RETURN_IF_ERROR(context_.gpu->AwaitAtLeast(slot.word, segment + 1, stream));
  return context_.gpu->Copy(part.data + first * size, slot.in, elements * size, stream);
}

void NetworkLeg::Submit(const Segment& segment) {
  if (const Status may = context_.check(); !may.ok()) {
    Finish(segment.number, segment.bytes(), may);
    return;
  }
  const Slot& slot = SlotOf(segment.number);
  Participant participant;
  participant.inputs = {slot.out};
  participant.outputs = {slot.in};
  participant.done = [this, number = segment.number, bytes = segment.bytes()](
                         const Status& status) { Finish(number, bytes, status); };
  op_.label = segment.label;
  context_.engine->Submit(op_, static_cast<int64_t>(segment.number) + 1, device_,
                          context_.rail, SignatureOf(segment), std::move(participant));
}

void NetworkLeg::Finish(uint64_t segment, size_t bytes, const Status& status) {
  const Slot& slot = SlotOf(segment);
  if (!status.ok()) {
    // Never a wrong sum, and nobody waits for ever.
    std::memset(slot.in, 0xff, bytes);
    context_.fail(status);
  }
  done_.fetch_add(1);
  std::atomic_ref(*slot.word).store(segment + 1, std::memory_order_release);
}

std::shared_ptr<const Signature> NetworkLeg::SignatureOf(const Segment& segment) {
  const uint64_t key = Hash64()
                           .Add(segment.elements)
                           .Add(static_cast<uint64_t>(segment.dtype))
                           .Add(static_cast<uint64_t>(segment.op))
                           .Add(segment.wire ? static_cast<uint64_t>(*segment.wire) : 99)
                           .value();
  std::shared_ptr<const Signature>& known = signatures_[key];
  if (!known) {
    const std::vector<std::string> shape = {"[" + std::to_string(segment.elements) + "]"};
    known = std::make_shared<const Signature>(segment.op, segment.dtype,
                                              std::vector<size_t>{segment.elements},
                                              shape, segment.wire);
  }
  return known;
}

}  // namespace smddp
