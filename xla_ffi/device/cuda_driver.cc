// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_driver.h"

namespace smddp::device {
namespace {

// Functions as they were in CUDA `version`, whatever the driver's: later ones may take
// other arguments.
template <class Function>
bool Find(const char* name, int version, Function& function) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(
      name, &found, static_cast<unsigned>(version), cudaEnableDefault, &result);
#else
  static_cast<void>(version);
  const cudaError_t error =
      cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &result);
#endif
  if (error != cudaSuccess) cudaGetLastError();
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess) return false;
  function = reinterpret_cast<Function>(found);
  return true;
}

Status CheckVersions() {
  int driver = 0;
  int runtime = 0;
  cudaRuntimeGetVersion(&runtime);
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    cudaGetLastError();
    return Status(StatusCode::kSystem, "no CUDA driver (libcuda.so.1) was found");
  }
  // A driver runs what any CUDA of its own major version has compiled.
  if (driver / 1000 >= runtime / 1000) return {};
  return Status(StatusCode::kSystem,
                "the CUDA driver runs programs of CUDA " + CudaVersion(driver) +
                    ", and smddp_jax._cuda was built with CUDA " + CudaVersion(runtime) +
                    ": update the driver, or build with the nvcc of CUDA " +
                    std::to_string(driver / 1000));
}

// Starts the driver, too.
Status CheckCount() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return {};
  cudaGetLastError();
  const std::string words = error == cudaSuccess ? "none" : cudaGetErrorString(error);
  return Status(StatusCode::kSystem, "CUDA finds no GPU (" + words +
                                         "): see nvidia-smi and CUDA_VISIBLE_DEVICES");
}

Result<const CudaDriver*> FindDriver() {
  SMDDP_RETURN_IF_ERROR(CheckVersions());
  SMDDP_RETURN_IF_ERROR(CheckCount());
  static CudaDriver driver;
  const bool complete = Find("cuGetErrorString", 6000, driver.error_string) &&
                        Find("cuDeviceGet", 2000, driver.get_device) &&
                        Find("cuDeviceGetAttribute", 2000, driver.get_attribute) &&
                        Find("cuDevicePrimaryCtxRetain", 7000, driver.retain_context) &&
                        Find("cuCtxPushCurrent", 4000, driver.push_context) &&
                        Find("cuCtxPopCurrent", 4000, driver.pop_context) &&
                        Find("cuStreamWaitValue64", 11070, driver.wait_value) &&
                        Find("cuStreamWriteValue64", 11070, driver.write_value);
  if (!complete) {
    return Status(StatusCode::kSystem,
                  "the CUDA driver lacks functions of CUDA 12: update it");
  }
  Find("cuFuncLoad", 12040, driver.load_function);
  return &driver;
}

Status Failed(int gpu, const char* call, const std::string& words) {
  return Status(StatusCode::kSystem,
                "GPU " + std::to_string(gpu) + ": " + call + ": " + words);
}

}  // namespace

std::string CudaVersion(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

Result<const CudaDriver*> CudaDriver::Get() {
  static const Result<const CudaDriver*> driver = FindDriver();
  return driver;
}

Status CudaDriver::StatusOf(CUresult result, int gpu, const char* call) const {
  if (result == CUDA_SUCCESS) return {};
  const char* words = nullptr;
  if (error_string(result, &words) != CUDA_SUCCESS) words = "unknown error";
  return Failed(gpu, call, words);
}

Status StatusOf(cudaError_t error, int gpu, const char* call) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  return Failed(gpu, call, cudaGetErrorString(error));
}

}  // namespace smddp::device
