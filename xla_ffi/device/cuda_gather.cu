// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_kernel.h"

namespace smddp::device {

CudaFunction FindCudaGather(DType in, DType out, bool scaled) {
  return FindGather<CudaKernel>(in, out, scaled);
}

}  // namespace smddp::device
