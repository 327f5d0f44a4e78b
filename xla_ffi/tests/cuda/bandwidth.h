// SPDX-License-Identifier: Apache-2.0
// The reduce kernel's bandwidth beside a copy's, on one GPU.
#pragma once

namespace smddp::device::testing {

// Prints a table; to be called in a process of its own.
void MeasureBandwidth();

}  // namespace smddp::device::testing
