// SPDX-License-Identifier: Apache-2.0
// The XLA FFI handlers of platform "cuda", as addresses to register. They only enqueue on
// XLA's stream; who has the GPUs is up to Registry::UseGpus().
//
// XLA's threads call them. No header of XLA or CUDA is needed to include this one.
#pragma once

#include <vector>

namespace smddp {

// A custom call target: when a program is loaded, before it runs, and when it runs.
struct CudaTarget {
  const char* name;
  void* instantiate;
  void* initialize;
  void* execute;
};
std::vector<CudaTarget> CudaTargets();

// A type of its own: XLA's CUDA plugin numbers types by itself.
inline constexpr char kCudaState[] = "smddp_cuda_state";
void* CudaStateId();
void* CudaStateInfo();

}  // namespace smddp
