// SPDX-License-Identifier: Apache-2.0
#include "plan/partition.h"

#include <algorithm>

namespace smddp {

Range PartOf(size_t total, size_t parts, size_t index, size_t align) {
  const size_t units = (total + align - 1) / align;
  const size_t each = units / parts;
  const size_t larger = units % parts;  // The first `larger` parts get one unit more.
  const size_t begin = (index * each + std::min(index, larger)) * align;
  const size_t size = (each + (index < larger ? 1 : 0)) * align;
  const size_t offset = std::min(begin, total);
  return {offset, std::min(size, total - offset)};
}

size_t SegmentCount(size_t total, size_t segment) {
  return (total + segment - 1) / segment;
}

Range SegmentOf(size_t total, size_t segment, size_t index) {
  const size_t offset = std::min(index * segment, total);
  return {offset, std::min(segment, total - offset)};
}

FusedSpace::FusedSpace(const std::vector<size_t>& counts) {
  starts_.reserve(counts.size() + 1);
  starts_.push_back(0);
  for (size_t count : counts) starts_.push_back(starts_.back() + count);
}

size_t FusedSpace::TensorAt(size_t position) const {
  const auto behind = std::upper_bound(starts_.begin() + 1, starts_.end(), position);
  return static_cast<size_t>(behind - starts_.begin()) - 1;
}

}  // namespace smddp
