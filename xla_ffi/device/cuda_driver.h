// SPDX-License-Identifier: Apache-2.0
// CUDA's driver as we call it, and its errors as a Status.
//
// Functions of the driver are found at run time: nothing links libcuda, so that what
// contains this loads where there is no driver. One object per process, which never
// changes; any thread may call.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "base/status.h"

namespace smddp::device {

struct CudaDriver {
  decltype(&cuGetErrorString) error_string = nullptr;
  decltype(&cuDeviceGet) get_device = nullptr;
  decltype(&cuDeviceGetAttribute) get_attribute = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) retain_context = nullptr;
  decltype(&cuCtxPushCurrent) push_context = nullptr;
  decltype(&cuCtxPopCurrent) pop_context = nullptr;
  decltype(&cuStreamWaitValue64) wait_value = nullptr;
  decltype(&cuStreamWriteValue64) write_value = nullptr;
  // nullptr before CUDA 12.4.
  decltype(&cuFuncLoad) load_function = nullptr;

  // Not ok where there is no GPU, or no driver that can run this package. Makes no
  // context.
  static Result<const CudaDriver*> Get();

  // `call`: what was called, as a user may look it up; `gpu`: its ordinal.
  Status StatusOf(CUresult result, int gpu, const char* call) const;
};

// Forgets the error, which CUDA's runtime would else report once more.
Status StatusOf(cudaError_t error, int gpu, const char* call);

// "13.0" of 13000.
std::string CudaVersion(int version);

// Makes a GPU's context this thread's, and then what it was before: another GPU's, or
// none. Selecting a GPU by its ordinal would make a context on GPU 0 on the way back.
// Where it can't, the call that it is for fails, and says why.
class CudaScope {
 public:
  CudaScope(const CudaDriver& driver, CUcontext context) : driver_(driver) {
    pushed_ = driver_.push_context(context) == CUDA_SUCCESS;
  }
  ~CudaScope() {
    CUcontext mine = nullptr;
    if (pushed_) driver_.pop_context(&mine);
  }
  CudaScope(const CudaScope&) = delete;
  CudaScope& operator=(const CudaScope&) = delete;

 private:
  const CudaDriver& driver_;
  bool pushed_;
};

}  // namespace smddp::device
