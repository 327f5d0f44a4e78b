// SPDX-License-Identifier: Apache-2.0
// A half-open range of positions, [offset, offset + size).
//
// A plain value. Units are those of the space it lies in: bytes in a plan over bytes,
// elements in a plan over elements.
#pragma once

#include <cstddef>

namespace smddp {

struct Range {
  size_t offset = 0;
  size_t size = 0;

  size_t end() const { return offset + size; }
  bool empty() const { return size == 0; }
  bool operator==(const Range&) const = default;
};

}  // namespace smddp
