// SPDX-License-Identifier: Apache-2.0
// The GPUs of this process, by CUDA's runtime: what gpu.h asks for, on real ones.
//
// One object per process. Any thread may call; the GPU that a thread had made current is
// current again afterwards.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "device/gpu.h"

namespace smddp::device {

class CudaGpus : public Gpus {
 public:
  static CudaGpus& OfThisProcess();

  // Makes the GPU's context and loads all kernels: one that is loaded at its first launch
  // would wait for kernels that wait for its peers.
  Result<Gpu*> Get(int ordinal) override;

  // These make no context. How many there are; none where there is no driver.
  int count() const;
  // Why none of them can be used; ok where one can.
  Status Problem() const;
  // Versions and GPUs, on one line.
  std::string Describe() const;

 private:
  CudaGpus() = default;
  ~CudaGpus() override = default;

  std::mutex mutex_;
  std::map<int, std::unique_ptr<Gpu>> gpus_;
};

}  // namespace smddp::device
