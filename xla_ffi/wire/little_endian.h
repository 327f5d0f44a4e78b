// SPDX-License-Identifier: Apache-2.0
// Integers as the wire has them: little-endian, at any address.
//
// Pure functions; any thread. Compilers turn each into one load or store.
#pragma once

#include <concepts>
#include <cstddef>

namespace smddp {

template <std::unsigned_integral T>
void StoreLittle(std::byte* to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to[i] = static_cast<std::byte>(value >> (8 * i));
}

template <std::unsigned_integral T>
T LoadLittle(const std::byte* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | std::to_integer<T>(from[i]) << (8 * i));
  }
  return value;
}

}  // namespace smddp
