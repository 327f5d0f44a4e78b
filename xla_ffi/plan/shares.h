// SPDX-License-Identifier: Apache-2.0
// How much of the bytes each reducer sums, and which part of a segment that is.
//
// Pure functions over plain values: the same on every rank. Reducers are numbered:
// dedicated ones first, then the co-located one of each worker host. With equal NICs the
// shares are BytePS's optimum (Jiang et al., OSDI'20, section 4): of S bytes 2(n-1)/D for
// each of k dedicated reducers and (n-k)/D for each of n worker hosts, with
// D = n^2 + kn - 2k; for k > n, 1/k and 0. A single worker host sums everything itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/range.h"

namespace smddp {

struct Shares {
  std::vector<double> fraction;  // Of each reducer; they add up to 1.
  // Seconds per byte of S that the slowest NIC needs in its busier direction, where a NIC
  // of weight 1 carries 1 byte per second.
  double seconds_per_byte = 0;
};

// The shares with which all NICs that matter finish at the same time. `worker_nics[i]`
// and `reducer_nics[j]`: relative speeds (> 0) of n >= 1 worker and k >= 0 dedicated
// hosts.
Shares BalancedShares(const std::vector<double>& worker_nics,
                      const std::vector<double>& reducer_nics);

// The part of a segment that one reducer owns.
struct Shard {
  size_t reducer = 0;
  Range range;  // In elements, counted from the segment's start.
  bool operator==(const Shard&) const = default;
};

// Cuts segment number `segment` of `elements` positions among the reducers with a
// fraction > 0: every position once, in reducer order, borders on multiples of `align`,
// each within one `align` of its share; empty shards are left out. Which reducer gets the
// odd unit rotates with `segment`, so that no reducer gains over a bucket. A segment of
// at most `whole` elements goes to one reducer; which one rotates too.
std::vector<Shard> ShardsOf(const Shares& shares, uint64_t segment, size_t elements,
                            size_t align, size_t whole);

}  // namespace smddp
