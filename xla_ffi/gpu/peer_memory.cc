// SPDX-License-Identifier: Apache-2.0
#include "gpu/peer_memory.h"

#include <cstring>
#include <set>
#include <string>
#include <utility>

namespace smddp {
namespace {

// What a process tells of one of its members: the text of a kDevice message.
struct Offer {
  uint64_t bytes = 0;
  device::MemoryHandle handle{};
};
static_assert(sizeof(Offer) <= sizeof(MeshMessage::text));

class Trade {
 public:
  Trade(Engine& engine, uint64_t id, const std::vector<MemoryMember>& members,
        size_t bytes)
      : engine_(engine), id_(id), members_(members), bytes_(bytes) {
    for (const MemoryMember& member : members) {
      if (member.gpu == nullptr) others_.insert(member.process);
    }
  }

  Result<MappedMemory> Run(const Deadline& deadline) {
    SMDDP_RETURN_IF_ERROR(Give());
    MappedMemory mapped;
    for (const MemoryMember& member : members_) {
      if (member.gpu == nullptr) continue;
      auto row = Map(*member.gpu, deadline);
      SMDDP_RETURN_IF_ERROR(row.status());
      mapped.push_back(std::move(*row));
    }
    return mapped;
  }

  std::vector<int> others() const { return {others_.begin(), others_.end()}; }

 private:
  Status Give() {
    mine_.resize(members_.size());
    for (size_t m = 0; m < members_.size(); ++m) {
      if (members_[m].gpu == nullptr) continue;
      auto memory = members_[m].gpu->Allocate(bytes_);
      SMDDP_RETURN_IF_ERROR(memory.status());
      mine_[m] = *memory;
      if (!others_.empty()) SMDDP_RETURN_IF_ERROR(Tell(m));
    }
    return {};
  }

  Status Tell(size_t m) {
    auto handle = members_[m].gpu->Export(mine_[m]);
    SMDDP_RETURN_IF_ERROR(handle.status());
    MeshMessage message;
    message.kind = MeshMessage::Kind::kDevice;
    message.group = id_;
    message.value = m;
    const Offer offer{bytes_, *handle};
    std::memcpy(message.text, &offer, sizeof(offer));
    return TellAll(engine_, {others_.begin(), others_.end()}, message);
  }

  // All members' memory as `gpu` sees it.
  Result<std::vector<char*>> Map(device::Gpu& gpu, const Deadline& deadline) {
    std::vector<char*> row = mine_;
    for (size_t m = 0; m < members_.size(); ++m) {
      const MemoryMember& member = members_[m];
      if (member.gpu == &gpu) continue;
      if (member.gpu != nullptr) {
        SMDDP_RETURN_IF_ERROR(gpu.Reach(*member.gpu));
        continue;
      }
      auto memory = MapOther(gpu, m, deadline);
      SMDDP_RETURN_IF_ERROR(memory.status());
      row[m] = *memory;
    }
    return row;
  }

  Result<char*> MapOther(device::Gpu& gpu, size_t m, const Deadline& deadline) {
    const int process = members_[m].process;
    auto message =
        engine_.device_mail().Await(id_, process, m, *engine_.mesh(), deadline);
    SMDDP_RETURN_IF_ERROR(message.status());
    Offer offer;
    std::memcpy(&offer, message->text, sizeof(offer));
    if (offer.bytes != bytes_) {
      return Status(StatusCode::kMismatch,
                    engine_.mesh()->Describe(process) + " gives " +
                        std::to_string(offer.bytes) + " bytes of GPU memory and rank " +
                        std::to_string(engine_.mesh()->process()) + " " +
                        std::to_string(bytes_) +
                        "; SMDDP_GPU_STAGING_BYTES must be the same everywhere");
    }
    auto memory = gpu.Import(offer.handle);
    if (memory.ok()) return memory;
    return Status(memory.status().code(), "GPU " + std::to_string(gpu.ordinal()) +
                                              " cannot map memory of " +
                                              engine_.mesh()->Describe(process) + ": " +
                                              memory.status().message());
  }

  Engine& engine_;
  const uint64_t id_;
  const std::vector<MemoryMember>& members_;
  const size_t bytes_;
  std::set<int> others_;     // Processes.
  std::vector<char*> mine_;  // By member.
};

}  // namespace

Result<MappedMemory> TradeMemory(Engine& engine, uint64_t id,
                                 const std::vector<MemoryMember>& members, size_t bytes,
                                 const Deadline& deadline) {
  Trade trade(engine, id, members, bytes);
  auto mapped = trade.Run(deadline);
  if (!mapped.ok()) TellFailure(engine, id, trade.others(), mapped.status().message());
  return mapped;
}

Status TellAll(Engine& engine, const std::vector<int>& processes,
               const MeshMessage& message) {
  for (const int process : processes) {
    const Status sent = engine.mesh()->Send(process, message);
    if (sent.ok()) continue;
    return Status(StatusCode::kPeerLost,
                  engine.mesh()->Describe(process) +
                      " cannot be told of GPU memory: " + sent.message());
  }
  return {};
}

void TellFailure(Engine& engine, uint64_t id, const std::vector<int>& processes,
                 const std::string& why) {
  LocalMesh* const mesh = engine.mesh();
  if (mesh == nullptr) return;
  MeshMessage message;
  message.kind = MeshMessage::Kind::kDeviceFailure;
  message.group = id;
  message.SetText(why);
  for (const int process : processes) {
    if (process == mesh->process() || !mesh->IsLocal(process)) continue;
    // Who is gone needs no telling.
    [[maybe_unused]] const Status sent = mesh->Send(process, message);
  }
}

}  // namespace smddp
