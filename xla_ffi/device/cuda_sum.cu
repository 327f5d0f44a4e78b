// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_kernel.h"

namespace smddp::device {

CudaFunction FindCudaSum(DType in, DType out) { return FindSum<CudaKernel>(in, out); }

}  // namespace smddp::device
