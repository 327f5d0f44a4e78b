// SPDX-License-Identifier: Apache-2.0
// The tests' own GPUs behave as gpu.h says; gpu_check asks the same of real ones.
#include "tests/device/gpu_contract.h"

#include <gtest/gtest.h>

#include "tests/device/host_gpus.h"

namespace smddp::device::testing {
namespace {

TEST(GpuContract, HoldsForHostGpus) {
  HostGpus gpus(2);
  EXPECT_EQ(CheckContract(gpus), std::vector<std::string>());
  gpus.FinishAll();
}

}  // namespace
}  // namespace smddp::device::testing
