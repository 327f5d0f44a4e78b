// SPDX-License-Identifier: Apache-2.0
#include "gpu/trial.h"

#include <cstring>
#include <limits>

#include "base/hash.h"
#include "gpu/peer_memory.h"

namespace smddp {
namespace {

constexpr size_t kBytes = 4096;
// Of a message with a process's number of GPUs.
constexpr uint64_t kCount = std::numeric_limits<uint64_t>::max();

uint64_t TrialId() { return Hash64().Add("trial of GPUs").value(); }

std::vector<int> ProcessesHere(const Engine& engine) {
  LocalMesh* const mesh = engine.mesh();
  return mesh != nullptr ? mesh->local_processes() : std::vector<int>{0};
}

Result<std::vector<device::Gpu*>> Find(device::Gpus& gpus, std::vector<int> ordinals) {
  std::vector<device::Gpu*> found;
  for (const int ordinal : ordinals) {
    auto gpu = gpus.Get(ordinal);
    SMDDP_RETURN_IF_ERROR(gpu.status());
    found.push_back(*gpu);
  }
  if (!ordinals.empty()) return found;
  for (int ordinal = 0;; ++ordinal) {
    auto gpu = gpus.Get(ordinal);
    if (gpu.ok()) {
      found.push_back(*gpu);
    } else if (ordinal == 0) {
      return gpu.status();
    } else {
      return found;
    }
  }
}

// How many GPUs a process of this host has.
Result<uint64_t> CountOf(Engine& engine, int process, const Deadline& deadline) {
  auto message =
      engine.device_mail().Await(TrialId(), process, kCount, *engine.mesh(), deadline);
  SMDDP_RETURN_IF_ERROR(message.status());
  uint64_t count = 0;
  std::memcpy(&count, message->text, sizeof(count));
  return count;
}

Status TellCount(Engine& engine, uint64_t count) {
  MeshMessage message;
  message.kind = MeshMessage::Kind::kDevice;
  message.group = TrialId();
  message.value = kCount;
  std::memcpy(message.text, &count, sizeof(count));
  std::vector<int> others = ProcessesHere(engine);
  if (others.size() == 1) return {};
  std::erase(others, engine.mesh()->process());
  return TellAll(engine, others, message);
}

}  // namespace

Status TryGpus(Engine& engine, device::Gpus& gpus, std::vector<int> ordinals) {
  const Deadline deadline = Deadline::After(engine.settings().timeout_seconds);
  const auto mine = Find(gpus, std::move(ordinals));
  if (!mine.ok()) {
    TellFailure(engine, TrialId(), ProcessesHere(engine), mine.status().message());
    return mine.status();
  }
  SMDDP_RETURN_IF_ERROR(TellCount(engine, mine->size()));
  std::vector<MemoryMember> members;
  for (const int process : ProcessesHere(engine)) {
    if (engine.mesh() == nullptr || process == engine.mesh()->process()) {
      for (device::Gpu* gpu : *mine) members.push_back({process, gpu});
      continue;
    }
    auto count = CountOf(engine, process, deadline);
    SMDDP_RETURN_IF_ERROR(count.status());
    members.insert(members.end(), *count, {process, nullptr});
  }
  return TradeMemory(engine, TrialId(), members, kBytes, deadline).status();
}

}  // namespace smddp
