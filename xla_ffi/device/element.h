// SPDX-License-Identifier: Apache-2.0
// Elements and operators of the kernels. 16-bit floats are computed with in float32.
//
// `Exec` is the execution policy (cuda_execution.h says what one must have): it knows how
// its machine converts 16-bit floats. Pure functions.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>

#include "device/call.h"

namespace smddp::device {

struct Float16 {
  uint16_t bits;
};
struct Bfloat16 {
  uint16_t bits;
};

template <class T>
constexpr bool kIsNarrow = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

// The type that elements of type T are computed with.
template <class T>
using LaneOf = std::conditional_t<kIsNarrow<T>, float, T>;

template <class Exec, class T>
SMDDP_DEVICE LaneOf<T> Decode(T element) {
  if constexpr (kIsNarrow<T>) {
    return Exec::ToFloat(element);
  } else {
    return element;
  }
}

template <class Exec, class T>
SMDDP_DEVICE T Encode(LaneOf<T> lane) {
  if constexpr (kIsNarrow<T>) {
    return Exec::template FromFloat<T>(lane);
  } else {
    return lane;
  }
}

// Integers are summed as unsigned ones: they wrap.
struct Sum {
  template <class Lane>
  SMDDP_DEVICE static Lane Apply(Lane a, Lane b) {
    return static_cast<Lane>(a + b);
  }
};

// A NaN if one of them is one; max(-0, +0) is +0 and min(-0, +0) is -0, in either order.
template <bool kMax>
struct Extremum {
  template <class Lane>
  SMDDP_DEVICE static Lane Apply(Lane a, Lane b) {
    if constexpr (std::is_floating_point_v<Lane>) {
      if (a != a || b != b) return a + b;
      if (a == 0 && b == 0) return kMax ? a + b : -(-a - b);
    }
    return (kMax ? a > b : a < b) ? a : b;
  }
};
using Max = Extremum<true>;
using Min = Extremum<false>;

// Scales the sum of all contributions, where there is something to scale.
template <class Op, class Lane>
SMDDP_DEVICE Lane Scale(Lane lane, double scale) {
  if constexpr (std::is_same_v<Op, Sum> && std::is_floating_point_v<Lane>) {
    return lane * static_cast<Lane>(scale);
  } else {
    return lane;
  }
}

}  // namespace smddp::device
