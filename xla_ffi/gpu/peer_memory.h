// SPDX-License-Identifier: Apache-2.0
// Memory of GPUs that the other GPUs of the host write to: made, told, and mapped.
//
// GPUs of one process reach each other; those of other processes get a handle over the
// host's sockets. Collective over the processes that have a member; blocks its caller up
// to the deadline. The memory lives as long as the process.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/deadline.h"
#include "base/status.h"
#include "collective/engine.h"
#include "device/gpu.h"

namespace smddp {

// One GPU of those that share memory: which process it is of, and itself if it is ours.
struct MemoryMember {
  int process = 0;
  device::Gpu* gpu = nullptr;
};

// By member of this process, in order, and by member: where the one sees the memory of
// the other.
using MappedMemory = std::vector<std::vector<char*>>;

// Every member gives `bytes`. `id` names the trade, alike everywhere and used only once;
// whoever fails tells the others.
Result<MappedMemory> TradeMemory(Engine& engine, uint64_t id,
                                 const std::vector<MemoryMember>& members, size_t bytes,
                                 const Deadline& deadline);

// Sends a message to other processes of this host.
Status TellAll(Engine& engine, const std::vector<int>& processes,
               const MeshMessage& message);

// Tells the other processes of the host among `processes` that what `id` names failed.
void TellFailure(Engine& engine, uint64_t id, const std::vector<int>& processes,
                 const std::string& why);

}  // namespace smddp
