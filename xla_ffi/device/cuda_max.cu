// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_kernel.h"

namespace smddp::device {

CudaFunction FindCudaMax(DType in, DType out) {
  return FindExtremum<CudaKernel, Max>(in, out);
}

}  // namespace smddp::device
