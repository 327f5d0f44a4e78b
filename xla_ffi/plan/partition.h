// SPDX-License-Identifier: Apache-2.0
// Who owns which part of a space, and how a space is cut into segments.
//
// Pure functions over plain values: the same on every rank, no state, any thread. The
// engine, its tests and its reports all use these and no other arithmetic.
#pragma once

#include <cstddef>
#include <vector>

#include "base/range.h"

namespace smddp {

// Part `index` of `total` positions cut into `parts` consecutive ranges that cover
// every position once. Borders lie on multiples of `align`; sizes differ by at most one
// `align`, and a part may be empty. Requires parts > 0, align > 0, index < parts.
Range PartOf(size_t total, size_t parts, size_t index, size_t align);

// Number of segments of at most `segment` positions that `total` positions need; an
// empty space needs none. Requires segment > 0.
size_t SegmentCount(size_t total, size_t segment);

// Segment `index` of that cut: all but the last are `segment` long.
Range SegmentOf(size_t total, size_t segment, size_t index);

// A piece of one tensor that lies in a range of a fused space.
struct Piece {
  size_t tensor = 0;    // Index of the tensor.
  Range in_tensor;      // Where the piece lies in its tensor.
  size_t in_range = 0;  // Where the piece starts, counted from the range's start.
  bool operator==(const Piece&) const = default;
};

// Tensors laid end to end as one space of elements ("fused"): so one all-reduce can
// carry a whole tree. Immutable after construction.
class FusedSpace {
 public:
  // `counts[i]` is the number of elements of tensor i; zero is allowed.
  explicit FusedSpace(const std::vector<size_t>& counts);

  size_t total() const { return starts_.back(); }
  size_t tensors() const { return starts_.size() - 1; }

  // Calls visit(const Piece&) for each non-empty piece of `range`, in order.
  template <typename Visit>
  void ForEachPiece(Range range, Visit&& visit) const {
    for (size_t i = TensorAt(range.offset); range.size > 0 && i < tensors(); ++i) {
      const size_t begin = starts_[i] < range.offset ? range.offset : starts_[i];
      const size_t end = starts_[i + 1] < range.end() ? starts_[i + 1] : range.end();
      if (begin >= range.end()) return;
      if (begin < end) {
        visit(Piece{i, {begin - starts_[i], end - begin}, begin - range.offset});
      }
    }
  }

 private:
  // Index of the first tensor that ends behind `position`.
  size_t TensorAt(size_t position) const;

  std::vector<size_t> starts_;  // starts_[i]: first position of tensor i; last: total.
};

}  // namespace smddp
