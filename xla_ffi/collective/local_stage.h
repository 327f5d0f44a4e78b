// SPDX-License-Identifier: Apache-2.0
// The process-local stage: arithmetic over the buffers of this process's devices.
//
// Reads XLA's argument buffers and writes XLA's result buffers, with no copy between.
// Free functions over a Call that the caller owns; no state.
#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"
#include "base/range.h"
#include "collective/call.h"
#include "collective/workers.h"
#include "reduce/reduce.h"

namespace smddp {

// Results of this many bytes and more, over all devices of the group (which share this
// host's caches), do not stay cached anyway and are stored past the caches.
inline constexpr size_t kStreamingBytes = size_t{2} << 20;

Store StoreFor(const Call& call);

// Combines `range` (elements of the space) of the local devices' arguments into `out`,
// an array of `type` that starts at the range's start. What an all-gather gets from
// other processes becomes zeros. `type` is the call's, or for sums of 16-bit floats and
// of float32 another of these (but not one 16-bit float for the other).
void CombineLocal(const Call& call, Range range, void* out, DType type);

// Combines `sources`, arrays of the partial type that each start at the range's start,
// into `out`, an array of `type` (as in CombineLocal). A null source stands for the
// argument of the only local device, which must be of the partial type and lie in the
// space as it is (not in an all-gather).
void CombineSources(const Call& call, Range range, std::span<const void* const> sources,
                    void* out, DType type);

// Combines `sources`, arrays of `type` (as in CombineLocal) that each start at the
// range's start, into what the local devices get of `range`.
void SpreadLocal(const Call& call, Range range, std::span<const void* const> sources,
                 DType type);

// `range` of a collective whose group lives in this process, on the calling thread.
void ExchangeLocal(const Call& call, Range range);

// Number of tasks that ExchangeLocal over a call is worth, and the range of each.
size_t LocalTasks(const Call& call, size_t threads);
Range LocalTask(const Call& call, size_t tasks, size_t index);

}  // namespace smddp
