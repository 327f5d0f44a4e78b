// SPDX-License-Identifier: Apache-2.0
#include "device/cuda_gpus.h"

#include <cstring>

#include "device/cuda_driver.h"
#include "device/launch.h"

namespace smddp::device {
namespace {

// What an allocation that other processes map is made of: CUDA would else export a block
// that belongs to others, too.
constexpr size_t kExportedBytes = size_t{2} << 20;
constexpr int kOldestCapability = 8;

static_assert(sizeof(MemoryHandle) == sizeof(cudaIpcMemHandle_t));

cudaStream_t Stream(StreamHandle handle) { return static_cast<cudaStream_t>(handle); }

CUdeviceptr Address(uint64_t* word) { return reinterpret_cast<CUdeviceptr>(word); }

std::string NameOf(int ordinal) {
  cudaDeviceProp properties{};
  const bool known = cudaGetDeviceProperties(&properties, ordinal) == cudaSuccess;
  if (!known) cudaGetLastError();
  return "GPU " + std::to_string(ordinal) + " (" + (known ? properties.name : "unknown") +
         ", compute capability " + std::to_string(properties.major) + "." +
         std::to_string(properties.minor) + ")";
}

Status Unusable(int ordinal, const char* why) {
  return Status(StatusCode::kSystem, NameOf(ordinal) + " " + why);
}

// Whether our kernels and the engine's protocol can run there.
Status CheckAbilities(const CudaDriver& driver, int ordinal) {
  CUdevice device = 0;
  SMDDP_RETURN_IF_ERROR(
      driver.StatusOf(driver.get_device(&device, ordinal), ordinal, "cuDeviceGet"));
  const auto has = [&](CUdevice_attribute attribute, int least) {
    int value = 0;
    return driver.get_attribute(&value, attribute, device) == CUDA_SUCCESS &&
           value >= least;
  };
  if (!has(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, kOldestCapability)) {
    return Unusable(ordinal, "is too old: our kernels need compute capability 8.0");
  }
  if (!has(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1) ||
      !has(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1)) {
    return Unusable(ordinal, "can't map host memory under one address");
  }
  if (!has(CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, 1)) {
    return Unusable(ordinal, "has no 64-bit stream memory operations");
  }
  return {};
}

Status LoadKernels(const CudaDriver& driver, int ordinal) {
  for (const void* kernel : AllKernels()) {
    cudaFuncAttributes attributes{};
    SMDDP_RETURN_IF_ERROR(StatusOf(cudaFuncGetAttributes(&attributes, kernel), ordinal,
                                   "cudaFuncGetAttributes"));
    if (driver.load_function == nullptr) continue;
    cudaFunction_t function = nullptr;
    SMDDP_RETURN_IF_ERROR(
        StatusOf(cudaGetFuncBySymbol(&function, kernel), ordinal, "cudaGetFuncBySymbol"));
    SMDDP_RETURN_IF_ERROR(
        driver.StatusOf(driver.load_function(function), ordinal, "cuFuncLoad"));
  }
  return {};
}

class CudaGpu : public Gpu {
 public:
  static Result<std::unique_ptr<CudaGpu>> Make(const CudaDriver& driver, int ordinal) {
    SMDDP_RETURN_IF_ERROR(CheckAbilities(driver, ordinal));
    auto gpu = std::unique_ptr<CudaGpu>(new CudaGpu(driver, ordinal));
    SMDDP_RETURN_IF_ERROR(gpu->Start());
    return gpu;
  }

  int ordinal() const override { return ordinal_; }

  Result<char*> Allocate(size_t bytes) override {
    const CudaScope scope(driver_, context_);
    const size_t whole = (bytes + kExportedBytes - 1) / kExportedBytes * kExportedBytes;
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, whole);
    if (error == cudaErrorMemoryAllocation) return OutOfMemory(error, whole);
    SMDDP_RETURN_IF_ERROR(Check(error, "cudaMalloc"));
    // Not on the default stream, which would wait for other streams.
    SMDDP_RETURN_IF_ERROR(
        Check(cudaMemsetAsync(memory, 0, whole, own_stream_), "cudaMemsetAsync"));
    SMDDP_RETURN_IF_ERROR(
        Check(cudaStreamSynchronize(own_stream_), "cudaStreamSynchronize"));
    return static_cast<char*>(memory);
  }

  Result<char*> AllocateHost(size_t bytes) override {
    const CudaScope scope(driver_, context_);
    void* memory = nullptr;
    SMDDP_RETURN_IF_ERROR(
        Check(cudaHostAlloc(&memory, bytes, cudaHostAllocPortable | cudaHostAllocMapped),
              "cudaHostAlloc"));
    std::memset(memory, 0, bytes);
    return static_cast<char*>(memory);
  }

  Result<MemoryHandle> Export(char* memory) override {
    const CudaScope scope(driver_, context_);
    cudaIpcMemHandle_t exported;
    SMDDP_RETURN_IF_ERROR(
        Check(cudaIpcGetMemHandle(&exported, memory), "cudaIpcGetMemHandle"));
    MemoryHandle handle;
    std::memcpy(handle.data(), &exported, sizeof(exported));
    return handle;
  }

  Result<char*> Import(const MemoryHandle& handle) override {
    const CudaScope scope(driver_, context_);
    cudaIpcMemHandle_t exported;
    std::memcpy(&exported, handle.data(), sizeof(exported));
    void* memory = nullptr;
    SMDDP_RETURN_IF_ERROR(
        Check(cudaIpcOpenMemHandle(&memory, exported, cudaIpcMemLazyEnablePeerAccess),
              "cudaIpcOpenMemHandle"));
    return static_cast<char*>(memory);
  }

  Status Reach(const Gpu& peer) override {
    if (peer.ordinal() == ordinal_) return {};
    const CudaScope scope(driver_, context_);
    int can = 0;
    SMDDP_RETURN_IF_ERROR(Check(cudaDeviceCanAccessPeer(&can, ordinal_, peer.ordinal()),
                                "cudaDeviceCanAccessPeer"));
    if (can == 0) {
      return Status(StatusCode::kSystem, "GPU " + std::to_string(ordinal_) +
                                             " has no peer access to GPU " +
                                             std::to_string(peer.ordinal()));
    }
    const cudaError_t error = cudaDeviceEnablePeerAccess(peer.ordinal(), 0);
    if (error == cudaErrorPeerAccessAlreadyEnabled) {
      cudaGetLastError();
      return {};
    }
    return Check(error, "cudaDeviceEnablePeerAccess");
  }

  Status Reduce(ReduceOp op, DType in, DType out, const Call& call,
                StreamHandle stream) override {
    const CudaScope scope(driver_, context_);
    return LaunchReduce(op, in, out, call, stream);
  }

  Status AllGather(DType in, DType out, const Call& call, StreamHandle stream) override {
    const CudaScope scope(driver_, context_);
    return LaunchAllGather(in, out, call, stream);
  }

  Status Copy(void* to, const void* from, size_t bytes, StreamHandle stream) override {
    const CudaScope scope(driver_, context_);
    return Check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, Stream(stream)),
                 "cudaMemcpyAsync");
  }

  Status Write(uint64_t* word, uint64_t value, StreamHandle stream) override {
    const CudaScope scope(driver_, context_);
    return driver_.StatusOf(driver_.write_value(Stream(stream), Address(word), value,
                                                CU_STREAM_WRITE_VALUE_DEFAULT),
                            ordinal_, "cuStreamWriteValue64");
  }

  Status AwaitAtLeast(uint64_t* word, uint64_t value, StreamHandle stream) override {
    const CudaScope scope(driver_, context_);
    return driver_.StatusOf(driver_.wait_value(Stream(stream), Address(word), value,
                                               CU_STREAM_WAIT_VALUE_GEQ),
                            ordinal_, "cuStreamWaitValue64");
  }

  Status CallHost(void (*function)(void*), void* argument, StreamHandle stream) override {
    const CudaScope scope(driver_, context_);
    return Check(cudaLaunchHostFunc(Stream(stream), function, argument),
                 "cudaLaunchHostFunc");
  }

  Result<StreamHandle> NewStream() override {
    const CudaScope scope(driver_, context_);
    cudaStream_t stream = nullptr;
    SMDDP_RETURN_IF_ERROR(MakeStream(stream));
    return StreamHandle{stream};
  }

  Status Follow(StreamHandle stream, StreamHandle earlier) override {
    const CudaScope scope(driver_, context_);
    // A wait keeps what was recorded when it was put on its stream: one event is enough.
    const std::lock_guard lock(mark_mutex_);
    SMDDP_RETURN_IF_ERROR(
        Check(cudaEventRecord(mark_, Stream(earlier)), "cudaEventRecord"));
    return Check(cudaStreamWaitEvent(Stream(stream), mark_, 0), "cudaStreamWaitEvent");
  }

 private:
  CudaGpu(const CudaDriver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}

  Status Check(cudaError_t error, const char* call) const {
    return StatusOf(error, ordinal_, call);
  }

  Status OutOfMemory(cudaError_t error, size_t bytes) const {
    const std::string words = Check(error, "cudaMalloc").message();
    return Status(StatusCode::kSystem,
                  words + " (" + std::to_string(bytes) +
                      " bytes): lower XLA_PYTHON_CLIENT_MEM_FRACTION, which leaves them "
                      "to us, or SMDDP_GPU_STAGING_BYTES");
  }

  // The context is XLA's too: there is one per process and GPU, and it is never released.
  Status Start() {
    CUdevice device = 0;
    SMDDP_RETURN_IF_ERROR(
        driver_.StatusOf(driver_.get_device(&device, ordinal_), ordinal_, "cuDeviceGet"));
    SMDDP_RETURN_IF_ERROR(driver_.StatusOf(driver_.retain_context(&context_, device),
                                           ordinal_, "cuDevicePrimaryCtxRetain"));
    const CudaScope scope(driver_, context_);
    SMDDP_RETURN_IF_ERROR(LoadKernels(driver_, ordinal_));
    SMDDP_RETURN_IF_ERROR(MakeStream(own_stream_));
    return Check(cudaEventCreateWithFlags(&mark_, cudaEventDisableTiming),
                 "cudaEventCreateWithFlags");
  }

  // Ahead of what computes: peers wait for it.
  Status MakeStream(cudaStream_t& stream) const {
    int least = 0;
    int greatest = 0;
    SMDDP_RETURN_IF_ERROR(Check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
                                "cudaDeviceGetStreamPriorityRange"));
    return Check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
                 "cudaStreamCreateWithPriority");
  }

  const CudaDriver& driver_;
  const int ordinal_;
  CUcontext context_ = nullptr;
  cudaStream_t own_stream_ = nullptr;
  std::mutex mark_mutex_;
  cudaEvent_t mark_ = nullptr;
};

}  // namespace

CudaGpus& CudaGpus::OfThisProcess() {
  // Never destroyed: the driver may be gone before our globals are.
  static auto* const gpus = new CudaGpus();
  return *gpus;
}

Result<Gpu*> CudaGpus::Get(int ordinal) {
  const auto driver = CudaDriver::Get();
  SMDDP_RETURN_IF_ERROR(driver.status());
  if (ordinal < 0 || ordinal >= count()) {
    return Status(StatusCode::kInvalidArgument,
                  "GPU " + std::to_string(ordinal) + ": this process sees " +
                      std::to_string(count()) + " (CUDA_VISIBLE_DEVICES)");
  }
  const std::lock_guard lock(mutex_);
  auto& gpu = gpus_[ordinal];
  if (gpu == nullptr) {
    auto made = CudaGpu::Make(**driver, ordinal);
    SMDDP_RETURN_IF_ERROR(made.status());
    gpu = std::move(*made);
  }
  return gpu.get();
}

int CudaGpus::count() const {
  int count = 0;
  if (!CudaDriver::Get().ok() || cudaGetDeviceCount(&count) != cudaSuccess) return 0;
  return count;
}

Status CudaGpus::Problem() const {
  const auto driver = CudaDriver::Get();
  Status problem = driver.status();
  for (int ordinal = 0; ordinal < count(); ++ordinal) {
    problem = CheckAbilities(**driver, ordinal);
    if (problem.ok()) break;
  }
  return problem;
}

std::string CudaGpus::Describe() const {
  int runtime = 0;
  int driver = 0;
  cudaRuntimeGetVersion(&runtime);
  cudaDriverGetVersion(&driver);
  std::string text = "CUDA " + CudaVersion(runtime) + ", driver " +
                     (driver == 0 ? "none" : CudaVersion(driver));
  for (int ordinal = 0; ordinal < count(); ++ordinal) text += ", " + NameOf(ordinal);
  return text;
}

}  // namespace smddp::device
