// SPDX-License-Identifier: Apache-2.0
// The table of kernels (device/kernel_table.h) for host threads. Pure functions.
#pragma once

#include "device/kernel_table.h"
#include "device/make_call.h"
#include "tests/device/host_execution.h"

namespace smddp::device::testing {

inline HostFunction FindHostReduce(ReduceOp op, DType in, DType out) {
  in = KernelType(in);
  out = KernelType(out);
  switch (op) {
    case ReduceOp::kSum:
      return FindSum<HostKernel>(in, out);
    case ReduceOp::kMax:
      return FindExtremum<HostKernel, Max>(in, out);
    case ReduceOp::kMin:
      return FindExtremum<HostKernel, Min>(in, out);
  }
  return nullptr;
}

inline HostFunction FindHostGather(const Kind& kind) {
  return FindGather<HostKernel>(KernelType(kind.in), KernelType(kind.out),
                                kind.scale != 1);
}

}  // namespace smddp::device::testing
