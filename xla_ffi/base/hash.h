// SPDX-License-Identifier: Apache-2.0
// A 64-bit hash that is the same in every process and every run (FNV-1a).
//
// A plain value; not for adversaries. std::hash will not do: it may differ by build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace smddp {

class Hash64 {
 public:
  Hash64& Add(uint64_t value) {
    for (int i = 0; i < 8; ++i) AddByte(static_cast<uint8_t>(value >> (8 * i)));
    return *this;
  }
  Hash64& Add(std::string_view text) {
    for (char c : text) AddByte(static_cast<uint8_t>(c));
    return Add(text.size());
  }
  uint64_t value() const { return value_; }

 private:
  void AddByte(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001b3ull; }
  uint64_t value_ = 0xcbf29ce484222325ull;
};

}  // namespace smddp
