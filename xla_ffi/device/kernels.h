// SPDX-License-Identifier: Apache-2.0
// The collectives of call.h, written once over an execution policy `Exec`.
//
// A unit is always handled by the thread of the same index, counted from the start of
// the unit's range and over all blocks, on every rank and in every round: so the meeting
// of that thread's block is all that its data waits for. All threads of all blocks of a
// rank call the same function with the same Call.
#pragma once

#include <cstdint>

#include "device/call.h"
#include "device/meeting.h"
#include "device/unit.h"

namespace smddp::device {

template <uint32_t n>
struct Count {};

struct Units {
  uint32_t begin;
  uint32_t end;
};

// One rank's, in one call. In: the contributions' element type; Out: the results'.
template <class Exec, class In, class Out>
class Collective {
  static constexpr uint32_t kElements = kUnitElements<In, Out>;
  using InUnit = Unit<In, kElements>;
  using OutUnit = Unit<Out, kElements>;
  using Lane = LaneOf<In>;
  // Units that a thread loads before it uses the first: 64 bytes under way, but fewer
  // where the lanes of small elements would not fit into registers.
  static constexpr uint32_t kAtOnce =
      sizeof(In) == 1 || kElements * sizeof(In) > 16 ? 2 : 4;

 public:
  SMDDP_DEVICE Collective(const Exec& exec, const Call& call)
      : exec_(exec), call_(call) {}

  // One-shot, two-shot and reduce-scatter.
  template <class Op>
  SMDDP_DEVICE void Reduce() const {
    Meetings<Exec> meetings(exec_, call_);
    if (!meetings.MayBegin()) return Poison();
    Push();
    bool met = meetings.Meet(0);
    if (met && ends_with_results()) {
      ReduceToAll<Op>();
      met = meetings.Meet(1);
    }
    if (!met) return Poison();
    ends_with_results() ? Collect() : ReduceToUser<Op>();
  }

  SMDDP_DEVICE void AllGather() const {
    Meetings<Exec> meetings(exec_, call_);
    if (!meetings.MayBegin()) return Poison();
    Spread();
    meetings.Meet(1) ? Collect() : Poison();
  }

 private:
  SMDDP_DEVICE Units Part(uint32_t rank) const {
    return {call_.borders[rank], call_.borders[rank + 1]};
  }

  // Whether there is a round 1, behind which everybody has all results.
  SMDDP_DEVICE bool ends_with_results() const {
    return call_.algorithm == Algorithm::kTwoShot ||
           call_.algorithm == Algorithm::kAllGather;
  }

  // What `rank` adds in round 0.
  SMDDP_DEVICE Units Reduced(uint32_t rank) const {
    return call_.algorithm == Algorithm::kOneShot ? Units{0, call_.units()} : Part(rank);
  }

  // Calls visit(rank) for all ranks, the next one first: no rank is everybody's first.
  template <class Visit>
  SMDDP_DEVICE void ForEachRank(Visit visit) const {
    uint32_t rank = call_.rank;
    for (uint32_t i = 0; i < call_.ranks; ++i) {
      rank = rank + 1 == call_.ranks ? 0 : rank + 1;
      visit(rank);
    }
  }

  // Calls body(Count<n>, u) for this thread's units of [u, end), n units at a time that
  // lie threads() apart, and leaves u behind the last one.
  template <class Body>
  SMDDP_DEVICE void Step(uint32_t& u, uint32_t end, Body body) const {
    const uint32_t stride = exec_.threads();
    for (; u + (kAtOnce - 1) * stride < end; u += kAtOnce * stride) {
      body(Count<kAtOnce>{}, u);
    }
    for (; u < end; u += stride) body(Count<1>{}, u);
  }

  // This thread's units of `range`, span by span: body(Count<n>, u, data) with the first
  // unit's place in the user's memory, and edge(u, data, bytes) where a unit is no whole
  // vector there. kBytes: of a unit in that memory.
  template <uint32_t kBytes, class Body, class Edge>
  SMDDP_DEVICE void Walk(const Spans& spans, Units range, Body body, Edge edge) const {
    uint32_t u = range.begin + exec_.thread();
    for (uint32_t s = 0; s < spans.count && u < range.end; ++s) {
      const Span& span = spans.spans[s];
      const auto at = [&](uint32_t unit) {
        return span.data + uint64_t{unit - span.first} * kBytes;
      };
      const uint32_t end = span.end < range.end ? span.end : range.end;
      const uint32_t whole_end = span.whole_end < end ? span.whole_end : end;
      Step(u, whole_end, [&](auto n, uint32_t unit) { body(n, unit, at(unit)); });
      for (; u < end; u += exec_.threads()) {
        edge(u, at(u), u + 1 == span.end ? span.last_bytes : kBytes);
      }
    }
  }

  // n units of a thread, which lie threads() units apart.
  template <class AnyUnit, uint32_t n>
  SMDDP_DEVICE void Load(AnyUnit (&units)[n], const char* from) const {
    const uint64_t step = uint64_t{exec_.threads()} * AnyUnit::kBytes;
    Unroll<n>([&](uint32_t k) { units[k].template Load<Exec>(from + k * step); });
  }
  template <class AnyUnit, uint32_t n>
  SMDDP_DEVICE void Store(const AnyUnit (&units)[n], char* to) const {
    const uint64_t step = uint64_t{exec_.threads()} * AnyUnit::kBytes;
    Unroll<n>([&](uint32_t k) { units[k].template Store<Exec>(to + k * step); });
  }

  // Where unit u of `rank`'s contribution lies with `reducer`.
  SMDDP_DEVICE char* Slot(uint32_t reducer, uint32_t rank, uint32_t u) const {
    return call_.staging[reducer] + rank * call_.slot_bytes +
           uint64_t{u - Reduced(reducer).begin} * InUnit::kBytes;
  }

  // Where unit u of the result lies with `rank`.
  SMDDP_DEVICE char* Result(uint32_t rank, uint32_t u) const {
    return call_.staging[rank] + call_.results_offset + uint64_t{u} * OutUnit::kBytes;
  }

  // Round 0: my contribution, to everybody who adds it.
  SMDDP_DEVICE void Push() const {
    ForEachRank([&](uint32_t reducer) {
      Walk<InUnit::kBytes>(
          call_.from, Reduced(reducer),
          [&]<uint32_t n>(Count<n>, uint32_t u, const char* data) {
            InUnit units[n];
            Load(units, data);
            Store(units, Slot(reducer, call_.rank, u));
          },
          [&](uint32_t u, const char* data, uint32_t bytes) {
            InUnit unit[1];
            unit[0].LoadEdge(data, bytes);
            Store(unit, Slot(reducer, call_.rank, u));
          });
    });
  }

  // The sums of unit u and those threads() behind it, in rank order.
  template <class Op, uint32_t n>
  SMDDP_DEVICE void Combine(uint32_t u, OutUnit (&results)[n]) const {
    const char* slot = Slot(call_.rank, 0, u);
    InUnit units[n];
    Lane lanes[n][kElements];
    Load(units, slot);
    Unroll<n>([&](uint32_t k) { units[k].template Decode<Exec>(lanes[k]); });
    for (uint32_t rank = 1; rank < call_.ranks; ++rank) {
      slot += call_.slot_bytes;
      Load(units, slot);
      Unroll<n>([&](uint32_t k) { Add<Op>(units[k], lanes[k]); });
    }
    Unroll<n>([&](uint32_t k) { Finish<Op>(lanes[k], results[k]); });
  }

  template <class Op>
  SMDDP_DEVICE static void Add(const InUnit& unit, Lane (&lanes)[kElements]) {
    Lane next[kElements];
    unit.template Decode<Exec>(next);
    Unroll<kElements>([&](uint32_t e) { lanes[e] = Op::Apply(lanes[e], next[e]); });
  }

  template <class Op>
  SMDDP_DEVICE void Finish(Lane (&lanes)[kElements], OutUnit& result) const {
    Unroll<kElements>([&](uint32_t e) { lanes[e] = Scale<Op>(lanes[e], call_.scale); });
    result.template Encode<Exec>(lanes);
  }

  // What I add is mine alone, or everybody adds it too.
  template <class Op>
  SMDDP_DEVICE void ReduceToUser() const {
    Walk<OutUnit::kBytes>(
        call_.to, Reduced(call_.rank),
        [&]<uint32_t n>(Count<n>, uint32_t u, char* data) {
          OutUnit results[n];
          Combine<Op>(u, results);
          Store(results, data);
        },
        [&](uint32_t u, char* data, uint32_t bytes) {
          OutUnit result[1];
          Combine<Op>(u, result);
          result[0].StoreEdge(data, bytes);
        });
  }

  template <uint32_t n>
  SMDDP_DEVICE void StoreToAll(uint32_t u, const OutUnit (&results)[n]) const {
    ForEachRank([&](uint32_t rank) { Store(results, Result(rank, u)); });
  }

  // Round 1, after a reduction: the part that I have added.
  template <class Op>
  SMDDP_DEVICE void ReduceToAll() const {
    const Units part = Part(call_.rank);
    uint32_t u = part.begin + exec_.thread();
    Step(u, part.end, [&]<uint32_t n>(Count<n>, uint32_t unit) {
      OutUnit results[n];
      Combine<Op>(unit, results);
      StoreToAll(unit, results);
    });
  }

  // Round 1, of a gather: the part that I bring, scaled and cast.
  SMDDP_DEVICE void Spread() const {
    Walk<InUnit::kBytes>(
        call_.from, Part(call_.rank),
        [&]<uint32_t n>(Count<n>, uint32_t u, const char* data) {
          InUnit units[n];
          OutUnit results[n];
          Load(units, data);
          Unroll<n>([&](uint32_t k) { Convert(units[k], results[k]); });
          StoreToAll(u, results);
        },
        [&](uint32_t u, const char* data, uint32_t bytes) {
          InUnit unit;
          OutUnit result[1];
          unit.LoadEdge(data, bytes);
          Convert(unit, result[0]);
          StoreToAll(u, result);
        });
  }

  SMDDP_DEVICE void Convert(const InUnit& unit, OutUnit& result) const {
    Lane lanes[kElements];
    unit.template Decode<Exec>(lanes);
    Finish<Sum>(lanes, result);
  }

  // After round 1: everybody's parts, from my staging to the user. Part by part, since
  // threads are counted from the start of a part.
  SMDDP_DEVICE void Collect() const {
    ForEachRank([&](uint32_t rank) {
      Walk<OutUnit::kBytes>(
          call_.to, Part(rank),
          [&]<uint32_t n>(Count<n>, uint32_t u, char* data) {
            OutUnit results[n];
            Load(results, Result(call_.rank, u));
            Store(results, data);
          },
          [&](uint32_t u, char* data, uint32_t bytes) {
            OutUnit result[1];
            Load(result, Result(call_.rank, u));
            result[0].StoreEdge(data, bytes);
          });
    });
  }

  // Instead of results: a call that was given up leaves NaNs, and never a wrong sum. Each
  // thread fills what it would have written.
  SMDDP_DEVICE void Poison() const {
    if (!ends_with_results()) return Poison(Reduced(call_.rank));
    ForEachRank([&](uint32_t rank) { Poison(Part(rank)); });
  }

  SMDDP_DEVICE void Poison(Units range) const {
    OutUnit unit;
    Unroll<OutUnit::kVectors>([&](uint32_t v) {
      Unroll<4>([&](uint32_t w) { unit.vectors[v].words[w] = 0xffffffff; });
    });
    Walk<OutUnit::kBytes>(
        call_.to, range,
        [&]<uint32_t n>(Count<n>, uint32_t, char* data) {
          const uint64_t step = uint64_t{exec_.threads()} * OutUnit::kBytes;
          Unroll<n>([&](uint32_t k) { unit.template Store<Exec>(data + k * step); });
        },
        [&](uint32_t, char* data, uint32_t bytes) { unit.StoreEdge(data, bytes); });
  }

  const Exec& exec_;
  const Call& call_;
};

// Stands in an operator's place for the collective that adds nothing.
struct Gather {};

// What every thread of every block of a rank runs.
template <class Op, class In, class Out, class Exec>
SMDDP_DEVICE void Run(const Exec& exec, const Call& call) {
  const Collective<Exec, In, Out> collective(exec, call);
  if constexpr (std::is_same_v<Op, Gather>) {
    collective.AllGather();
  } else {
    collective.template Reduce<Op>();
  }
}

}  // namespace smddp::device
