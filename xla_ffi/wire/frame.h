// SPDX-License-Identifier: Apache-2.0
// What travels between hosts: frames, each a header of fixed size and a payload.
//
// A header is a plain value; Encode and Decode are pure functions, any thread. Decode
// checks what can be checked without knowing the plan; the receiver checks the rest
// before it reads a payload byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "base/status.h"

namespace smddp {

// Values cross process borders: a new one is added at the end and none is renumbered.
enum class FrameKind : uint8_t {
  kHeartbeat = 0,  // I am alive.
  kGoodbye = 1,    // I leave. Payload: why, in words.
  // Between workers.
  kJoin = 2,     // My stage of this stream exists. `value`: its reducers' version.
  kOrder = 3,    // Payload: the next collective of this group.
  kNotice = 4,   // Payload: what I have waited in for a while.
  kFailure = 5,  // The group is broken. Payload: why, in words.
  kLeave = 6,    // I leave the group, having completed all before `segment`.
  // Between a worker and a reducer.
  kOpen = 7,    // Payload: StreamShape. Forget what came under an older epoch.
  kPush = 8,    // Payload: my contribution to the reducer's shard of `segment`.
  kResult = 9,  // Payload: the sum over that shard.
  // Between workers, about which reducers are in use. `value`: see comm/membership.h.
  kSuspect = 10,
  kReady = 11,
  kPrepare = 12,
  kPrepared = 13,
  kCommit = 14,
  // To measure a link, see transport/probe.h. `value`: number of the burst.
  kProbe = 15,   // Bytes that mean nothing. 0: more of this burst follow.
  kProbed = 16,  // All of the burst is here.
};
inline constexpr uint8_t kFrameKinds = 17;

// Whether the payload is elements of a segment, which go to where the receiver says.
constexpr bool IsData(FrameKind kind) {
  return kind == FrameKind::kPush || kind == FrameKind::kResult;
}

// Bits of a kPush's `value`.
inline constexpr uint64_t kPushEmpty = 1;     // I have nothing to add: no payload.
inline constexpr uint64_t kPushNoResult = 2;  // I need no sum: a kResult without payload.

struct FrameHeader {
  FrameKind kind = FrameKind::kHeartbeat;
  ReduceOp op = ReduceOp::kSum;  // kPush.
  DType in = DType::kF32;        // kPush: of the contributions. kResult: of its payload.
  DType out = DType::kF32;       // kPush: of the result.
  uint32_t payload = 0;          // Bytes that follow the header.
  uint64_t stream = 0;           // Which group, rail and lane.
  uint32_t epoch = 0;            // Version of the stream's set of reducers.
  // kPush: host index of the sender. kResult: reducer index of the sender.
  uint32_t from = 0;
  uint64_t segment = 0;  // Counted over the life of the stream.
  uint64_t value = 0;    // Of the kind.

  bool operator==(const FrameHeader&) const = default;
};

inline constexpr size_t kHeaderBytes = 40;
// Payloads of all kinds but kPush and kResult are at most this long.
inline constexpr size_t kControlBytes = 4096;

// Little-endian, no padding.
void Encode(const FrameHeader& header, std::span<std::byte, kHeaderBytes> bytes);

// An error for an unknown kind, operator or dtype, for a control payload over
// kControlBytes and for a data payload that is no whole number of elements.
Result<FrameHeader> Decode(std::span<const std::byte, kHeaderBytes> bytes);

// Payload of kOpen: how the sender will use a stream, for the reducer it is sent to.
struct StreamShape {
  uint32_t hosts = 0;    // That contribute; they are combined in this order.
  uint32_t host = 0;     // Which of them the sender is.
  uint32_t reducer = 0;  // What the receiver is called in the stream (kResult's `from`).
  uint32_t window = 0;   // Segments of the stream that may be under way at once.
  uint64_t slot_bytes = 0;  // The largest contribution or sum.
  uint64_t first = 0;       // The first segment of this epoch.

  bool operator==(const StreamShape&) const = default;
};
inline constexpr size_t kShapeBytes = 32;
void Encode(const StreamShape& shape, std::span<std::byte, kShapeBytes> bytes);
// An error if hosts or window is zero or absurd (over 65536), or host >= hosts.
Result<StreamShape> DecodeShape(std::span<const std::byte> bytes);

}  // namespace smddp
