// SPDX-License-Identifier: Apache-2.0
// One shard in the making: who has contributed to it, what, and where that lies.
//
// Plain state of a Reducer's stream, used under its lane's lock. A slot serves one
// segment after another; its memory is made when a host first needs it and kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/status.h"
#include "wire/frame.h"

namespace smddp {

// Whether a push makes sense by itself, in a stream whose contributions and sums have at
// most `slot_bytes`.
Status CheckPush(const FrameHeader& push, uint64_t slot_bytes);

class Slot {
 public:
  // Takes segments from `first` on.
  Slot(size_t hosts, uint64_t first) : contributions_(hosts), next_(first) {}

  // A push (that passed CheckPush) joins once, then arrives once. An error if its segment
  // is over, another is in the making, the host has joined before, or hosts disagree.
  Status Join(const FrameHeader& push);
  bool Joined(const FrameHeader& push) const;
  // Where host `from` contributes to; `size` is the stream's, and added to `staged` if
  // the memory is new.
  std::byte* Buffer(uint32_t from, size_t size, uint64_t& staged);
  // The contribution of a host that joined is in `data` (null: it has nothing to add).
  void Arrived(uint32_t from, const std::byte* data);
  // The host's contribution is not there any more.
  void Withdraw(uint32_t from);

  // Whether all hosts' contributions are there.
  bool complete() const { return there_ == contributions_.size(); }
  // Sums them in host order to `outputs` of sum_bytes() each; returns the bytes that were
  // summed. An error if no host has anything to add.
  Result<uint64_t> Sum(const std::vector<void*>& outputs);
  size_t sum_bytes() const { return bytes_ / SizeOf(in_) * SizeOf(out_); }
  // Of the sum.
  DType out() const { return out_; }
  uint64_t segment() const { return segment_; }
  bool wants_sum(uint32_t host) const { return contributions_[host].wants_sum; }
  // Where the local worker wants the sum, too; null: nowhere.
  std::byte* local_out() const { return local_out_; }
  void set_local_out(std::byte* out) { local_out_ = out; }
  // Memory for the sum; as Buffer.
  std::byte* SumBuffer(size_t size, uint64_t& staged);
  // Ready for a later segment.
  void Clear();

 private:
  using Memory = std::unique_ptr<std::byte[]>;
  struct Contribution {
    enum class State : uint8_t { kNone, kJoined, kThere };

    State state = State::kNone;
    bool wants_sum = false;
    const std::byte* data = nullptr;
    Memory memory;
  };

  static std::byte* Provide(Memory& memory, size_t size, uint64_t& staged);

  std::vector<Contribution> contributions_;  // By host.
  Memory sum_;
  uint64_t next_;  // Segments before it are over.
  // Of the segment in the making, if a host has joined.
  bool busy_ = false;
  uint64_t segment_ = 0;
  ReduceOp op_ = ReduceOp::kSum;
  DType in_ = DType::kF32;
  DType out_ = DType::kF32;
  uint32_t first_host_ = 0;  // The one that said so.
  size_t bytes_ = 0;         // Of each contribution; 0: not known yet.
  uint32_t sized_by_ = 0;    // The host that said so.
  size_t there_ = 0;
  std::byte* local_out_ = nullptr;
};

}  // namespace smddp
