// SPDX-License-Identifier: Apache-2.0
// Puts a Call on a CUDA stream. Needs no CUDA header, and no driver before the first
// call.
//
// Enqueues and returns: nothing here waits. Calls of one group go to one stream, in the
// order of their numbers. Any thread may call, with the GPU of `stream` made current.
#pragma once

#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "device/call.h"
#include "device/gpu.h"

namespace smddp::device {

// `in` and `out`: see KernelType(); the call's algorithm is any but kAllGather.
Status LaunchReduce(ReduceOp op, DType in, DType out, const Call& call,
                    StreamHandle stream);

Status LaunchAllGather(DType in, DType out, const Call& call, StreamHandle stream);

// What these can launch, as CUDA's runtime takes a kernel.
std::vector<const void*> AllKernels();

}  // namespace smddp::device
