// SPDX-License-Identifier: Apache-2.0
// One collective among the GPUs of a host, as data: what each rank's kernel reads.
//
// Every rank owns a staging buffer and a page of flags that all ranks map. A call has up
// to two rounds, each ended by a meeting of all ranks (meeting.h):
//
//   round 0   every rank pushes its contributions into the staging of those that add them
//   round 1   every rank pushes its part of the result into everybody's staging
//
// Calls of a group are numbered from 1, and call n uses half n mod 2 of every staging
// buffer. No further handshake is needed: a rank that writes for call n has met all ranks
// in call n - 1, so all of them have left call n - 2, which read that half before. Plain
// data, passed to a kernel by value; the memory it points to belongs to whoever launches.
#pragma once

#include <cstddef>
#include <cstdint>

// What runs on a GPU is compiled by nvcc for it and by a C++ compiler for the tests.
#ifdef __CUDACC__
#define SMDDP_DEVICE __host__ __device__ __forceinline__
#else
#define SMDDP_DEVICE inline
#endif

namespace smddp::device {

constexpr uint32_t kMaxRanks = 8;
constexpr uint32_t kMaxBlocks = 128;
constexpr uint32_t kMaxSpans = 64;
constexpr uint32_t kThreads = 512;  // Per block, on a GPU.

// In a rank's own GPU memory, written by its peers; all zero when the group is made.
struct Flags {
  // The latest meeting that block b of rank r has come to: [b][r], a Meeting. It only
  // grows, so that a flag left by an earlier call can never be taken for this one's.
  uint64_t met[kMaxBlocks][kMaxRanks];
  // Not zero once this rank gave up a call: it then writes nothing to its peers any more,
  // who would take its next meeting for the one it missed.
  uint64_t broken;
};

// A meeting as a flag: later ones are greater, whatever their tags. The tag says what
// kind of call it is: ranks that disagree about that give the call up, all of them.
struct Meeting {
  static constexpr uint32_t kTagBits = 24;

  SMDDP_DEVICE static constexpr uint64_t Pack(uint64_t call, uint32_t round,
                                              uint32_t tag) {
    return (call * 2 + round) << kTagBits | tag % (1u << kTagBits);
  }
  SMDDP_DEVICE static constexpr uint64_t Order(uint64_t flag) { return flag >> kTagBits; }
};

// In host memory that the rank's GPU maps. The host ends a wait by setting `abort`.
struct Watch {
  uint64_t abort;
  // Which wait was given up: GaveUp::Pack(), or zero.
  uint64_t gave_up;
};

// Which meeting was given up, and because of which rank: it had not come, or it
// disagrees about what is called.
struct GaveUp {
  uint64_t call;
  uint32_t round;
  uint32_t rank;
  bool disagrees;

  SMDDP_DEVICE uint64_t Pack() const {
    return ((call * 2 + round) * kMaxRanks + rank) * 2 + (disagrees ? 1 : 0);
  }
  static GaveUp Unpack(uint64_t packed) {
    const uint64_t meeting = packed / 2 / kMaxRanks;
    return {meeting / 2, static_cast<uint32_t>(meeting % 2),
            static_cast<uint32_t>(packed / 2 % kMaxRanks), packed % 2 != 0};
  }
};

// An array of the user's, as units of the fused space. A unit is as many elements as fill
// one or two vectors of 16 bytes (unit.h); each array starts a new one.
struct Span {
  char* data;
  uint32_t first;      // Its first unit.
  uint32_t whole_end;  // Units up to here may be moved as vectors: complete and aligned.
  uint32_t end;
  uint32_t last_bytes;  // Bytes of the array in its last unit.
};

struct Spans {
  uint32_t count;
  Span spans[kMaxSpans];
};

enum class Algorithm : uint32_t {
  kOneShot,        // All-reduce: everybody pushes everything to all, and adds it all.
  kTwoShot,        // All-reduce: each rank adds one part and pushes it to all.
  kReduceScatter,  // The first half of kTwoShot: each rank keeps its part.
  kAllGather,      // The second half: each rank brings its part.
};

struct Call {
  Algorithm algorithm;
  uint32_t rank;
  uint32_t ranks;
  uint32_t blocks;
  uint64_t number;
  uint32_t tag;  // What all ranks must agree about, as a hash; see Meeting.
  double scale;  // Multiplies a sum before its one rounding; 1 for all else.

  Flags* flags[kMaxRanks];
  char* staging[kMaxRanks];  // This call's half.
  Watch* watch;

  uint64_t slot_bytes;      // Contribution of rank r: r times this from staging's start.
  uint64_t results_offset;  // Where round 1's results lie in staging.
  // Part p of the fused space, rank p's: units [borders[p], borders[p + 1]).
  uint32_t borders[kMaxRanks + 1];

  Spans from;
  Spans to;

  SMDDP_DEVICE uint32_t units() const { return borders[ranks]; }
};
// What a kernel may take by value on any architecture and driver.
static_assert(sizeof(Call) <= 4096);

}  // namespace smddp::device
