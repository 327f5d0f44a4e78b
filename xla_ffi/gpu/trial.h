// SPDX-License-Identifier: Apache-2.0
// Whether the GPUs of a host can use each other's memory, found out by doing it.
#pragma once

#include <vector>

#include "base/status.h"
#include "collective/engine.h"
#include "device/gpu.h"

namespace smddp {

// Collective over the processes of this host, once per job; blocks its caller up to the
// deadline. `ordinals`: the GPUs to try; none means all that this process sees. The error
// says why GPUs here, or those of a peer, cannot be used.
Status TryGpus(Engine& engine, device::Gpus& gpus, std::vector<int> ordinals);

}  // namespace smddp
