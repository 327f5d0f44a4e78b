// SPDX-License-Identifier: Apache-2.0
// How long calls take: of one size and algorithm, in a row, on all ranks at once.
//
// A rank is a thread here and its stream, or a process; each runs TimeCalls() with the
// same arguments and its own group.
#pragma once

#include <functional>
#include <vector>

#include "tests/cuda/gpu_ranks.h"

namespace smddp::device::testing {

struct Timing {
  size_t bytes;
  double one_shot;  // Microseconds of a call.
  double two_shot;
};

// `meet` returns when all ranks have called it.
std::vector<Timing> TimeCalls(Gpu& gpu, const Group& group,
                              const std::function<void()>& meet);

// All ranks being streams of this process, on one GPU, so that their kernels run side by
// side; those of several processes would take turns.
std::vector<Timing> TimeOnOneGpu(uint32_t ranks);

// A table, and up to which size one-shot is the faster one.
void PrintTimings(const std::string& where, const std::vector<Timing>& timings);

constexpr size_t kTimedHalfBytes = size_t{32} << 20;

}  // namespace smddp::device::testing
