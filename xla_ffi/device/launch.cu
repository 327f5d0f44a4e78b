// SPDX-License-Identifier: Apache-2.0
#include <cuda_runtime_api.h>

#include <set>
#include <string>

#include "device/cuda_kernel.h"
#include "device/launch.h"
#include "device/make_call.h"

namespace smddp::device {
namespace {

CudaFunction FindReduce(ReduceOp op, DType in, DType out) {
  switch (op) {
    case ReduceOp::kSum:
      return FindCudaSum(in, out);
    case ReduceOp::kMax:
      return FindCudaMax(in, out);
    case ReduceOp::kMin:
      return FindCudaMin(in, out);
  }
  return nullptr;
}

constexpr DType kLastDType = DType::kC128;

// Calls visit(in, out) for all pairs of types.
template <class Visit>
void ForEachPair(Visit visit) {
  constexpr int kCount = static_cast<int>(kLastDType) + 1;
  for (int pair = 0; pair < kCount * kCount; ++pair) {
    visit(static_cast<DType>(pair / kCount), static_cast<DType>(pair % kCount));
  }
}

Status Launch(CudaFunction function, const std::string& name, DType in, DType out,
              const Call& call, StreamHandle stream) {
  const std::string what = name + " of " + Name(in) + " to " + Name(out);
  if (function == nullptr) {
    return Status(StatusCode::kInvalidArgument, "no kernel for " + what);
  }
  void* arguments[] = {const_cast<Call*>(&call)};
  const cudaError_t error =
      cudaLaunchKernel(reinterpret_cast<const void*>(function), dim3(call.blocks),
                       dim3(kThreads), arguments, 0, static_cast<cudaStream_t>(stream));
  if (error == cudaSuccess) return {};
  return Status(StatusCode::kSystem, what + " on rank " + std::to_string(call.rank) +
                                         ": CUDA says: " + cudaGetErrorString(error));
}

}  // namespace

Status LaunchReduce(ReduceOp op, DType in, DType out, const Call& call,
                    StreamHandle stream) {
  const CudaFunction function = FindReduce(op, KernelType(in), KernelType(out));
  return Launch(function, Name(op), in, out, call, stream);
}

Status LaunchAllGather(DType in, DType out, const Call& call, StreamHandle stream) {
  const CudaFunction function =
      FindCudaGather(KernelType(in), KernelType(out), call.scale != 1);
  return Launch(function, "all-gather", in, out, call, stream);
}

std::vector<const void*> AllKernels() {
  std::set<CudaFunction> functions;
  ForEachPair([&](DType in, DType out) {
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMax, ReduceOp::kMin}) {
      functions.insert(FindReduce(op, in, out));
    }
    for (bool scaled : {false, true}) functions.insert(FindCudaGather(in, out, scaled));
  });
  functions.erase(nullptr);
  std::vector<const void*> kernels;
  for (CudaFunction function : functions) {
    kernels.push_back(reinterpret_cast<const void*>(function));
  }
  return kernels;
}

}  // namespace smddp::device
