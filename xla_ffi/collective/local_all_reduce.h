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

// Combines `range` (elements of the fused space) of the local devices' arguments into
// `out`, an array of the partial type that starts at the range's start.
void CombineLocal(const Call& call, Range range, void* out);

// Combines `sources`, arrays of the partial type that each start at the range's start,
// into `out`, which is such an array too. A null source stands for the argument of the
// only local device, which must be of the partial type.
void CombineSources(const Call& call, Range range, std::span<const void* const> sources,
                    void* out);

// Combines `sources`, arrays of the partial type that each start at the range's start,
// into `range` of every local device's results.
void SpreadLocal(const Call& call, Range range, std::span<const void* const> sources);

// The whole all-reduce of a group that lives in this process, on the calling thread.
void AllReduceLocal(const Call& call, Range range);

// Number of tasks that AllReduceLocal over a call is worth, and the range of each.
size_t LocalTasks(const Call& call, size_t threads);
Range LocalTask(const Call& call, size_t tasks, size_t index);

}  // namespace smddp
