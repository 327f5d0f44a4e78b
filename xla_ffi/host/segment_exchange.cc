// SPDX-License-Identifier: Apache-2.0
#include "host/segment_exchange.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <utility>

namespace smddp {
namespace {

constexpr size_t kCacheLine = 64;
constexpr size_t kPage = 4096;
constexpr size_t kLogEntries = 64;
constexpr size_t kFailureText = 1024;

constexpr size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// One writer each; on its own cache line, so that polling one does not slow another.
struct alignas(kCacheLine) Counter {
  std::atomic<uint64_t> value{0};

  // Sequentially consistent: see Doorbell.
  uint64_t Load() const { return value.load(std::memory_order_seq_cst); }
  void Store(uint64_t to) { value.store(to, std::memory_order_seq_cst); }
};
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

// All zero is the valid initial state, so a fresh memfd needs no constructor.
struct SegmentExchange::Control {
  Counter published;  // Leader: entries written to `log`.
  Counter taken;      // Entries that this member needs no more.
  Counter awaiting;   // 1: has a collective that is not in the log yet.
  Counter staged;     // Each: number of segments that went through the step.
  Counter reduced;
  Counter consumed;
  Counter failed;  // 1: `failure` holds text.
  char failure[kFailureText];
  OrderEntry log[kLogEntries];
};

size_t SegmentExchange::BlockBytes(size_t slots, size_t slot_bytes) {
  return RoundUp(sizeof(Control), kPage) + slots * RoundUp(slot_bytes, kPage);
}

SegmentExchange::SegmentExchange(Shape shape, size_t me, std::vector<std::byte*> blocks)
    : shape_(shape), me_(me), blocks_(std::move(blocks)) {}

SegmentExchange::Control& SegmentExchange::control(size_t member) const {
  return *reinterpret_cast<Control*>(blocks_[member]);
}

bool SegmentExchange::CanPublish() const {
  uint64_t slowest = std::numeric_limits<uint64_t>::max();
  for (size_t i = 0; i < shape_.members; ++i) {
    slowest = std::min(slowest, control(i).taken.Load());
  }
  return Published() < slowest + kLogEntries;
}

void SegmentExchange::Publish(const OrderEntry& entry) {
  const uint64_t n = Published();
  control(0).log[n % kLogEntries] = entry;
  control(0).published.Store(n + 1);
}

uint64_t SegmentExchange::Published() const { return control(0).published.Load(); }

const OrderEntry& SegmentExchange::Entry(uint64_t n) const {
  return control(0).log[n % kLogEntries];
}

void SegmentExchange::Taken(uint64_t n) { control(me_).taken.Store(n + 1); }

void SegmentExchange::SetAwaiting(bool awaiting) {
  control(me_).awaiting.Store(awaiting ? 1 : 0);
}

bool SegmentExchange::Awaiting(size_t member) const {
  return control(member).awaiting.Load() != 0;
}

bool SegmentExchange::SlotFree(uint64_t segment) const {
  return segment < shape_.slots || AllConsumed(segment - shape_.slots);
}

bool SegmentExchange::AllConsumed(uint64_t segment) const {
  for (size_t i = 0; i < shape_.members; ++i) {
    if (control(i).consumed.Load() <= segment) return false;
  }
  return true;
}

bool SegmentExchange::Staged(size_t member, uint64_t segment) const {
  return control(member).staged.Load() > segment;
}

bool SegmentExchange::Reduced(size_t member, uint64_t segment) const {
  return control(member).reduced.Load() > segment;
}

bool SegmentExchange::AllStaged(uint64_t segment) const {
  for (size_t i = 0; i < shape_.members; ++i) {
    if (!Staged(i, segment)) return false;
  }
  return true;
}

bool SegmentExchange::AllReduced(uint64_t segment) const {
  for (size_t i = 0; i < shape_.members; ++i) {
    if (!Reduced(i, segment)) return false;
  }
  return true;
}

void SegmentExchange::SetStaged(uint64_t segment) {
  control(me_).staged.Store(segment + 1);
}

void SegmentExchange::SetReduced(uint64_t segment) {
  control(me_).reduced.Store(segment + 1);
}

void SegmentExchange::SetConsumed(uint64_t segment) {
  control(me_).consumed.Store(segment + 1);
}

std::byte* SegmentExchange::Slot(size_t member, uint64_t segment) const {
  return blocks_[member] + RoundUp(sizeof(Control), kPage) +
         (segment % shape_.slots) * RoundUp(shape_.slot_bytes, kPage);
}

void SegmentExchange::SetFailure(std::string_view text) {
  Control& mine = control(me_);
  if (mine.failed.Load() != 0) return;  // The first reason is the one that counts.
  const size_t size = std::min(text.size(), kFailureText - 1);
  std::memcpy(mine.failure, text.data(), size);
  mine.failure[size] = '\0';
  mine.failed.Store(1);
}

std::string SegmentExchange::Failure(size_t member) const {
  const Control& theirs = control(member);
  if (theirs.failed.Load() == 0) return {};
  return std::string(theirs.failure, strnlen(theirs.failure, kFailureText));
}

}  // namespace smddp
