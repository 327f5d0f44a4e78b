// SPDX-License-Identifier: Apache-2.0
// The kernels as CUDA sees them. Each source file that includes this compiles the entries
// of one operator: cuda_sum.cu, cuda_max.cu, cuda_min.cu, cuda_gather.cu.
#pragma once

#include "device/call.h"
#include "device/cuda_execution.h"
#include "device/kernel_table.h"

namespace smddp::device {

// One block of a multiprocessor at a time: its threads get twice the registers that two
// would leave them, for loads under way.
template <class Op, class In, class Out>
__global__ void __launch_bounds__(kThreads, 1)
    SmddpKernel(const __grid_constant__ Call call) {
  const CudaExecution exec;
  Run<Op, In, Out>(exec, call);
}

using CudaFunction = void (*)(Call);

template <class Op, class In, class Out>
struct CudaKernel {
  using Function = CudaFunction;
  static constexpr Function kFunction = SmddpKernel<Op, In, Out>;
};

// nullptr where there is no such kernel.
CudaFunction FindCudaSum(DType in, DType out);
CudaFunction FindCudaMax(DType in, DType out);
CudaFunction FindCudaMin(DType in, DType out);
CudaFunction FindCudaGather(DType in, DType out, bool scaled);

}  // namespace smddp::device
