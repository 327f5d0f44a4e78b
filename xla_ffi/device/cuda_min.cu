// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_kernel.h"

namespace smddp::device {

CudaFunction FindCudaMin(DType in, DType out) {
  return FindExtremum<CudaKernel, Min>(in, out);
}

}  // namespace smddp::device
