// SPDX-License-Identifier: Apache-2.0
// Units: what a thread moves and computes with at a time, in vectors of 16 bytes.
//
// Where a cast changes the width, a unit has as many elements as make whole vectors on
// both sides. Memory of the user's that ends or starts within a vector goes byte by byte;
// all other accesses are whole vectors. Pure functions over memory of the caller's.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>

#include "device/element.h"

namespace smddp::device {

// f(0), f(1), ..., f(n - 1), without a loop: arrays that f indexes can stay in registers.
template <uint32_t n, class F>
SMDDP_DEVICE void Unroll(F f) {
  [&]<uint32_t... i>(std::integer_sequence<uint32_t, i...>) {
    (f(i), ...);
  }(std::make_integer_sequence<uint32_t, n>{});
}

struct alignas(16) Vector {
  uint32_t words[4];
};

template <class In, class Out>
constexpr uint32_t kUnitElements =
    sizeof(Vector) / (sizeof(In) < sizeof(Out) ? sizeof(In) : sizeof(Out));

template <class T, uint32_t kElements>
struct Unit {
  static constexpr uint32_t kBytes = kElements * sizeof(T);
  static constexpr uint32_t kVectors = kBytes / sizeof(Vector);

  Vector vectors[kVectors];

  template <class Exec>
  SMDDP_DEVICE void Load(const char* from) {
    Unroll<kVectors>(
        [&](uint32_t v) { vectors[v] = Exec::LoadVector(from + v * sizeof(Vector)); });
  }

  template <class Exec>
  SMDDP_DEVICE void Store(char* to) const {
    Unroll<kVectors>(
        [&](uint32_t v) { Exec::StoreVector(to + v * sizeof(Vector), vectors[v]); });
  }

  // The first `bytes` of the unit lie at `from`, on any address; zeros follow.
  SMDDP_DEVICE void LoadEdge(const char* from, uint32_t bytes) {
    Unroll<kVectors>([&](uint32_t v) { vectors[v] = {}; });
    Unroll<kBytes>([&](uint32_t at) {
      const uint32_t byte = at < bytes ? static_cast<uint8_t>(from[at]) : 0;
      vectors[at / 16].words[at / 4 % 4] |= byte << (8 * (at % 4));
    });
  }

  SMDDP_DEVICE void StoreEdge(char* to, uint32_t bytes) const {
    Unroll<kBytes>([&](uint32_t at) {
      const uint32_t word = vectors[at / 16].words[at / 4 % 4];
      if (at < bytes) to[at] = static_cast<char>(word >> (8 * (at % 4)));
    });
  }

  template <class Exec>
  SMDDP_DEVICE void Decode(LaneOf<T>* lanes) const {
    T elements[kElements];
    memcpy(elements, vectors, kBytes);
    Unroll<kElements>([&](uint32_t e) { lanes[e] = device::Decode<Exec>(elements[e]); });
  }

  template <class Exec>
  SMDDP_DEVICE void Encode(const LaneOf<T>* lanes) {
    T elements[kElements];
    Unroll<kElements>(
        [&](uint32_t e) { elements[e] = device::Encode<Exec, T>(lanes[e]); });
    memcpy(vectors, elements, kBytes);
  }
};

}  // namespace smddp::device
