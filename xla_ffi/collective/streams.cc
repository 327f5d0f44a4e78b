// SPDX-License-Identifier: Apache-2.0
#include "collective/streams.h"

#include <algorithm>

namespace smddp {
namespace {

constexpr size_t kPage = 4096;
// All members' rings together stay within this, so that a segment is still in a common
// last-level cache when the others read it.
constexpr size_t kCachedRings = size_t{2} << 20;
// Shorter segments cost more in waking each other than they save in the cache.
constexpr size_t kLeastCachedSlot = size_t{64} << 10;

bool IsMember(const GroupStream& stream, int process) {
  const std::vector<int>& members = stream.group().processes();
  return std::binary_search(members.begin(), members.end(), process);
}

}  // namespace

Streams::Streams(const Settings& settings, Workers& workers, FinishCall finish, Wake wake)
    : settings_(settings),
      workers_(workers),
      finish_(std::move(finish)),
      wake_(std::move(wake)) {}

Result<Streams::Peers> Streams::Meet(int process, int processes, KeyValueStore& store) {
  const Deadline deadline = Deadline::After(settings_.timeout_seconds);
  const auto on_lost = [this](int lost, std::string why) {
    {
      const std::lock_guard lock(messages_mutex_);
      losses_.emplace_back(lost, std::move(why));
    }
    device_mail_.NoteLoss();
    wake_.ring();
  };
  const std::string nonce = RandomNonce();
  auto listener = LocalMesh::Listen(nonce);
  SMDDP_RETURN_IF_ERROR(listener.status());
  auto roster = Roster::Meet(process, processes, nonce, settings_, store, deadline);
  SMDDP_RETURN_IF_ERROR(roster.status());

  LocalMesh::Events of_mesh;
  of_mesh.on_block = [this](const MeshMessage& message, UniqueFd fd) {
    {
      const std::lock_guard lock(messages_mutex_);
      offers_.insert_or_assign(std::pair{message.group, int{message.process}},
                               BlockOffer{message.value, std::move(fd)});
    }
    wake_.ring();
  };
  of_mesh.on_device = [this](const MeshMessage& message) { device_mail_.Put(message); };
  of_mesh.on_lost = on_lost;
  auto mesh =
      LocalMesh::Connect(std::move(*listener), *roster, deadline, std::move(of_mesh));
  SMDDP_RETURN_IF_ERROR(mesh.status());
  Peers peers{roster->host_ids(), std::move(*mesh), nullptr};
  if (roster->one_host()) return peers;

  auto network = Network::Start(*roster, settings_, store, deadline, {on_lost, wake_.go});
  SMDDP_RETURN_IF_ERROR(network.status());
  peers.network = std::move(*network);
  return peers;
}

void Streams::Add(std::unique_ptr<Call> call) {
  if (const std::string why = Refusal(); !why.empty()) {
    const std::string text = why + " (in " + call->Describe() + ")";
    const StatusCode code =
        left_.empty() ? StatusCode::kInvalidArgument : StatusCode::kAborted;
    finish_(std::move(call), Status(code, text));
    return;
  }
  StreamOf(call->group)->Add(std::move(call));
}

void Streams::FailGroup(const std::shared_ptr<const Group>& group,
                        const std::string& reason) {
  if (!Refusal().empty()) return;
  StreamOf(group)->Fail(StatusCode::kAborted, reason, /*tell=*/true);
}

std::string Streams::Refusal() const {
  if (!mesh()) return "a collective spans processes, but smddp_jax.init() was not called";
  return left_;
}

GroupStream* Streams::StreamOf(const std::shared_ptr<const Group>& group) {
  auto [found, created] = streams_.try_emplace(group->id());
  if (!created) return found->second.get();
  GroupStream::Context context;
  context.mesh = mesh();
  context.network = network();
  context.workers = &workers_;
  context.finish = finish_;
  context.take_offer = [this](uint64_t id, int process) {
    return TakeOffer(id, process);
  };
  context.timeout_seconds = settings_.timeout_seconds;
  found->second =
      std::make_unique<GroupStream>(group, peers_.host_ids, std::move(context));
  const size_t slot_bytes = NextSlotBytes(*found->second);
  staging_bytes_ += SegmentExchange::BlockBytes(found->second->slots(), slot_bytes);
  if (const Status opened = found->second->Open(slot_bytes); !opened.ok()) {
    found->second->Fail(opened.code(), opened.message(), /*tell=*/false);
  }
  for (const auto& [process, why] : lost_) {
    if (IsMember(*found->second, process)) found->second->Lose(process, why);
  }
  return found->second.get();
}

// On one host the smallest of three: what the user set; a share of the cache, since a
// ring that falls out of it costs up to 1.6 times the time (docs/benchmarks.md); and half
// of the staging that is left, so that the bound holds for any number of groups that
// matter. A page per slot is the least that works. Over several hosts the network
// decides, alike on all of them.
size_t Streams::NextSlotBytes(const GroupStream& stream) const {
  const Topology& topology = stream.topology();
  if (topology.hosts() > 1) {
    return NetworkStage::SegmentBytes(*network(), topology, settings_.staging_bytes);
  }
  const size_t used = staging_bytes_.load();
  const size_t left = settings_.staging_bytes > used ? settings_.staging_bytes - used : 0;
  const size_t cached =
      std::max(kCachedRings / stream.slots() / topology.mine().size(), kLeastCachedSlot);
  const size_t slot =
      std::min({settings_.segment_bytes, cached, left / 2 / stream.slots()});
  return std::max(slot / kPage * kPage, kPage);
}

std::optional<BlockOffer> Streams::TakeOffer(uint64_t group, int process) {
  const std::lock_guard lock(messages_mutex_);
  auto node = offers_.extract({group, process});
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

bool Streams::Progress() {
  if (!mesh()) return false;
  HandleLosses();
  bool any = false;
  for (auto& [id, stream] : streams_) any |= stream->Progress();
  return any;
}

void Streams::HandleLosses() {
  std::vector<std::pair<int, std::string>> losses;
  {
    const std::lock_guard lock(messages_mutex_);
    losses.swap(losses_);
  }
  for (const auto& [process, why] : losses) {
    lost_.try_emplace(process, why);
    for (auto& [id, stream] : streams_) {
      if (IsMember(*stream, process)) stream->Lose(process, why);
    }
  }
}

void Streams::CheckDeadlines() {
  for (auto& [id, stream] : streams_) stream->CheckDeadlines();
}

void Streams::Abort(const std::string& reason) {
  for (auto& [id, stream] : streams_) {
    stream->Fail(StatusCode::kAborted,
                 "rank " + std::to_string(mesh()->process()) + ": " + reason,
                 /*tell=*/true);
  }
}

void Streams::Leave(const std::string& reason) {
  if (!mesh() || !left_.empty()) return;
  left_ = "rank " + std::to_string(mesh()->process()) + " left the job: " + reason;
  for (auto& [id, stream] : streams_) {
    stream->Leave();
    stream->Fail(StatusCode::kAborted, left_, /*tell=*/false);
  }
  mesh()->SayGoodbye(reason);
}

}  // namespace smddp
