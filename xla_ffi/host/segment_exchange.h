// SPDX-License-Identifier: Apache-2.0
// The host stage: the processes of one host pass segments through shared memory.
//
// Each member of a group owns one block: a control page and a ring of slots, mapped by
// all members. Segments are numbered 0, 1, 2, ... for the life of the group and segment
// s lies in slot s mod slots(). It goes through three steps, each announced by one
// counter that only its owner writes:
//
//   staged    I have written my contribution to segment s into my slot;
//   reduced   I have written the reduced part of segment s that I own into my slot;
//   consumed  I have read all I need of segment s from everybody's slots.
//
// A slot is free for segment s when every member has consumed segment s - slots(). No
// step ever blocks: each question is answered from the counters as they are now.
//
// The first member (the leader) also writes the order log: which collective comes next.
// Not thread-safe: the caller serialises (collective/ holds the progress lock).
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace smddp {

// What identifies one collective among those of a group, and what its members must
// agree on. Written by the leader, compared by every other member.
struct OrderEntry {
  static constexpr size_t kTextSize = 160;

  uint64_t tag = 0;           // Which collective: same on every member.
  uint64_t signature = 0;     // Hash of op, dtype and shapes.
  char text[kTextSize] = {};  // The same in words, for the error message.
};

class SegmentExchange {
 public:
  struct Shape {
    size_t members = 0;
    size_t slots = 0;
    size_t slot_bytes = 0;
  };

  // Bytes that one member's block needs.
  static size_t BlockBytes(size_t slots, size_t slot_bytes);

  // `blocks[i]` is where member i's block of BlockBytes() is mapped; `me` is this
  // process's index. The blocks outlive this object.
  SegmentExchange(Shape shape, size_t me, std::vector<std::byte*> blocks);

  const Shape& shape() const { return shape_; }
  size_t me() const { return me_; }
  bool leader() const { return me_ == 0; }

  // Order log. The leader may publish while CanPublish(); entry n is there for
  // everybody once n < Published(). Taken(n) tells the leader that entry n may go.
  bool CanPublish() const;
  void Publish(const OrderEntry& entry);
  uint64_t Published() const;
  const OrderEntry& Entry(uint64_t n) const;
  void Taken(uint64_t n);

  // Whether a member has a collective at hand that it waits to see in the log.
  void SetAwaiting(bool awaiting);
  bool Awaiting(size_t member) const;

  bool SlotFree(uint64_t segment) const;
  bool Staged(size_t member, uint64_t segment) const;
  bool Reduced(size_t member, uint64_t segment) const;
  bool AllStaged(uint64_t segment) const;
  bool AllReduced(uint64_t segment) const;
  bool AllConsumed(uint64_t segment) const;
  void SetStaged(uint64_t segment);
  void SetReduced(uint64_t segment);
  void SetConsumed(uint64_t segment);

  std::byte* Slot(size_t member, uint64_t segment) const;

  // A member that finds the group broken says why; the others read it here.
  void SetFailure(std::string_view text);
  // Member `member`'s words, or empty.
  std::string Failure(size_t member) const;

 private:
  struct Control;

  Control& control(size_t member) const;

  const Shape shape_;
  const size_t me_;
  const std::vector<std::byte*> blocks_;
};

}  // namespace smddp
