// SPDX-License-Identifier: Apache-2.0
#include "reducer/slot.h"

#include <span>
#include <string>

#include "reduce/reduce.h"

namespace smddp {
namespace {

bool IsInteger(DType dtype) { return dtype <= DType::kU64; }
bool IsComplex(DType dtype) { return dtype >= DType::kC64; }
bool IsHalf(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }

// What Reduce() has kernels for.
bool Exists(ReduceOp op, DType in, DType out) {
  if (op != ReduceOp::kSum && IsComplex(in)) return false;
  return in == out || (IsHalf(in) && out == DType::kF32) ||
         (in == DType::kF32 && IsHalf(out));
}

std::string Describe(ReduceOp op, DType in, DType out) {
  return std::string(Name(op)) + " of " + Name(in) + " to " + Name(out);
}

Status Refuse(const FrameHeader& push, const std::string& why) {
  return Status(StatusCode::kMismatch, "host " + std::to_string(push.from) +
                                           " pushes segment " +
                                           std::to_string(push.segment) + " of stream " +
                                           std::to_string(push.stream) + ": " + why);
}

}  // namespace

Status CheckPush(const FrameHeader& push, uint64_t slot_bytes) {
  if (!Exists(push.op, push.in, push.out)) {
    return Refuse(push, "there is no " + Describe(push.op, push.in, push.out));
  }
  if ((push.value & ~(kPushEmpty | kPushNoResult)) != 0) {
    return Refuse(push, "unknown flags " + std::to_string(push.value));
  }
  if ((push.value & kPushEmpty) != 0) {
    if (push.payload != 0) return Refuse(push, "nothing to add, but a payload");
    if (push.op != ReduceOp::kSum || !IsInteger(push.in)) {
      return Refuse(push, "nothing to add to a " + Describe(push.op, push.in, push.out) +
                              "; only sums of integers may have holes");
    }
    return Status();
  }
  const uint64_t count = push.payload / SizeOf(push.in);
  if (count == 0 || count * SizeOf(push.in) != push.payload) {
    return Refuse(push, std::to_string(push.payload) + " bytes of " + Name(push.in));
  }
  if (push.payload > slot_bytes || count * SizeOf(push.out) > slot_bytes) {
    return Refuse(push, std::to_string(count) + " elements, " +
                            Describe(push.op, push.in, push.out) +
                            ", where the stream was opened for " +
                            std::to_string(slot_bytes) + " bytes");
  }
  return Status();
}

Status Slot::Join(const FrameHeader& push) {
  if (push.segment < next_) return Refuse(push, "it is over or never was");
  if (busy_ && segment_ != push.segment) {
    return Refuse(push, "segment " + std::to_string(segment_) + " is not over, and " +
                            "needs the same slot");
  }
  Contribution& mine = contributions_[push.from];
  if (mine.state != Contribution::State::kNone) return Refuse(push, "for a second time");
  if (busy_ && (op_ != push.op || in_ != push.in || out_ != push.out)) {
    return Refuse(push, Describe(push.op, push.in, push.out) + ", where host " +
                            std::to_string(first_host_) + " pushed " +
                            Describe(op_, in_, out_));
  }
  const bool empty = (push.value & kPushEmpty) != 0;
  if (!empty && bytes_ != 0 && bytes_ != push.payload) {
    return Refuse(push, std::to_string(push.payload / SizeOf(in_)) +
                            " elements, where host " + std::to_string(sized_by_) +
                            " pushed " + std::to_string(bytes_ / SizeOf(in_)));
  }
  if (!busy_) {
    busy_ = true;
    segment_ = push.segment;
    op_ = push.op;
    in_ = push.in;
    out_ = push.out;
    first_host_ = push.from;
  }
  if (!empty && bytes_ == 0) {
    bytes_ = push.payload;
    sized_by_ = push.from;
  }
  mine.state = Contribution::State::kJoined;
  mine.wants_sum = (push.value & kPushNoResult) == 0;
  return Status();
}

bool Slot::Joined(const FrameHeader& push) const {
  return busy_ && segment_ == push.segment &&
         contributions_[push.from].state == Contribution::State::kJoined;
}

std::byte* Slot::Buffer(uint32_t from, size_t size, uint64_t& staged) {
  return Provide(contributions_[from].memory, size, staged);
}

std::byte* Slot::SumBuffer(size_t size, uint64_t& staged) {
  return Provide(sum_, size, staged);
}

std::byte* Slot::Provide(Memory& memory, size_t size, uint64_t& staged) {
  if (!memory) {
    memory = std::make_unique_for_overwrite<std::byte[]>(size);
    staged += size;
  }
  return memory.get();
}

void Slot::Arrived(uint32_t from, const std::byte* data) {
  contributions_[from].state = Contribution::State::kThere;
  contributions_[from].data = data;
  ++there_;
}

void Slot::Withdraw(uint32_t from) {
  Contribution& contribution = contributions_[from];
  if (contribution.state == Contribution::State::kThere) --there_;
  contribution.state = Contribution::State::kNone;
  contribution.data = nullptr;
}

Result<uint64_t> Slot::Sum(const std::vector<void*>& outputs) {
  std::vector<const void*> inputs;
  inputs.reserve(contributions_.size());
  for (const Contribution& contribution : contributions_) {
    if (contribution.data != nullptr) inputs.push_back(contribution.data);
  }
  if (inputs.empty()) {
    return Status(StatusCode::kMismatch, "segment " + std::to_string(segment_) +
                                             ": no host has anything to add");
  }
  Reduce(op_, in_, out_, inputs, outputs, bytes_ / SizeOf(in_), Store::kCached);
  return uint64_t{bytes_} * inputs.size();
}

void Slot::Clear() {
  for (Contribution& contribution : contributions_) {
    contribution.state = Contribution::State::kNone;
    contribution.data = nullptr;
  }
  next_ = segment_ + 1;
  busy_ = false;
  bytes_ = 0;
  there_ = 0;
  local_out_ = nullptr;
}

}  // namespace smddp
