// SPDX-License-Identifier: Apache-2.0
#include "reducer/reducer.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <utility>
#include <vector>

namespace smddp {
namespace {

// Peer numbers that no transport uses.
constexpr int kLocal = -1;
constexpr int kNobody = -2;
// What a buffer costs beside its bytes.
constexpr size_t kBufferCost = 64;

Status Refuse(uint64_t stream, uint32_t epoch, const std::string& why) {
  return Status(StatusCode::kMismatch, "stream " + std::to_string(stream) + ", epoch " +
                                           std::to_string(epoch) + ": " + why);
}

std::string Describe(const StreamShape& shape) {
  return std::to_string(shape.hosts) + " hosts, " + std::to_string(shape.window) +
         " segments of " + std::to_string(shape.slot_bytes) + " bytes from segment " +
         std::to_string(shape.first) + " on, as reducer " + std::to_string(shape.reducer);
}

// All hosts of a stream must say the same, but for who they are.
bool Alike(StreamShape a, const StreamShape& b) {
  a.host = b.host;
  return a == b;
}

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds) {}
  ~Stopwatch() {
    seconds_ += std::chrono::duration<double>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  const Clock::time_point start_ = Clock::now();
};

}  // namespace

struct Reducer::Stream {
  struct Host {
    int peer = kNobody;
    bool open = false;  // In this epoch.
  };

  explicit Stream(uint64_t id, size_t hosts) : id(id), hosts(hosts) {}

  Slot& SlotOf(uint64_t segment) { return slots[segment % slots.size()]; }
  // Cuts all ties with the memory of the local worker, which is `host`.
  void Withdraw(uint32_t host) {
    for (Slot& slot : slots) {
      slot.Withdraw(host);
      slot.set_local_out(nullptr);
    }
  }

  const uint64_t id;
  StreamShape shape;  // As the first host of this epoch opened it.
  uint32_t epoch = 0;
  std::vector<Host> hosts;
  std::vector<Slot> slots;
  size_t promised = 0;  // What the slots may come to hold.
  uint64_t staged = 0;  // What they hold.
};

Reducer::Reducer(size_t staging_bytes, Transport& transport, LocalDone local_done)
    : staging_limit_(staging_bytes),
      transport_(transport),
      local_done_(std::move(local_done)) {}

Reducer::~Reducer() = default;

Status Reducer::Open(int peer, const FrameHeader& open, const StreamShape& shape) {
  auto found = streams_.find(open.stream);
  if (found == streams_.end()) {
    auto stream = std::make_unique<Stream>(open.stream, shape.hosts);
    SMDDP_RETURN_IF_ERROR(Begin(*stream, open, shape));
    found = streams_.emplace(open.stream, std::move(stream)).first;
  }
  Stream& stream = *found->second;
  SMDDP_RETURN_IF_ERROR(CheckClaim(stream, peer, open, shape));
  Stream::Host& host = stream.hosts[shape.host];
  host.peer = peer;
  if (open.epoch < stream.epoch) {
    ++counters_.stale;
    return Status();
  }
  if (open.epoch > stream.epoch) {
    transport_.Forget(open.stream, open.epoch);
    SMDDP_RETURN_IF_ERROR(Begin(stream, open, shape));
  } else if (!Alike(shape, stream.shape)) {
    return Refuse(open.stream, open.epoch,
                  "opened for " + Describe(shape) + "; another host opened it for " +
                      Describe(stream.shape));
  } else if (host.open) {
    return Refuse(open.stream, open.epoch,
                  "opened as host " + std::to_string(shape.host) + " for a second time");
  }
  host.open = true;
  return Status();
}

// A host is the same peer in all epochs, and a peer is one host.
Status Reducer::CheckClaim(const Stream& stream, int peer, const FrameHeader& open,
                           const StreamShape& shape) const {
  if (shape.hosts != stream.hosts.size()) {
    return Refuse(open.stream, open.epoch,
                  "opened for " + std::to_string(shape.hosts) + " hosts; it has " +
                      std::to_string(stream.hosts.size()));
  }
  for (size_t i = 0; i < stream.hosts.size(); ++i) {
    const int other = stream.hosts[i].peer;
    if ((i == shape.host) == (other == peer) || other == kNobody) continue;
    return Refuse(open.stream, open.epoch,
                  "opened as host " + std::to_string(shape.host) +
                      (i == shape.host ? ", which another process is"
                                       : ", and as host " + std::to_string(i)));
  }
  return Status();
}

// The first host of an epoch is there: what came before is void.
Status Reducer::Begin(Stream& stream, const FrameHeader& open, const StreamShape& shape) {
  // The local worker's contributions stay where they are.
  const size_t buffers = size_t{shape.window} * (shape.hosts + (inside_worker() ? 0 : 1));
  const size_t room = staging_limit_ - (promised_ - stream.promised);
  const bool absurd = shape.slot_bytes > std::numeric_limits<uint32_t>::max();
  if (absurd || shape.slot_bytes + kBufferCost > room / buffers) {
    return Refuse(open.stream, open.epoch,
                  "a reducer needs " + std::to_string(buffers) + " buffers of " +
                      std::to_string(shape.slot_bytes) + " bytes for " + Describe(shape) +
                      ", and has " + std::to_string(room) + " of " +
                      std::to_string(staging_limit_) +
                      " bytes left: raise SMDDP_STAGING_BYTES (--staging-bytes of a "
                      "dedicated one) or lower SMDDP_SHARD_BYTES");
  }
  Free(stream);
  stream.shape = shape;
  stream.epoch = open.epoch;
  for (Stream::Host& host : stream.hosts) host.open = false;
  stream.promised = buffers * (shape.slot_bytes + kBufferCost);
  promised_ += stream.promised;
  stream.slots.reserve(shape.window);
  for (uint32_t i = 0; i < shape.window; ++i) {
    stream.slots.emplace_back(shape.hosts, shape.first);
  }
  return Status();
}

void Reducer::Free(Stream& stream) {
  promised_ -= std::exchange(stream.promised, 0);
  counters_.staging_bytes -= std::exchange(stream.staged, 0);
  stream.slots.clear();
}

// A host whose connection was lost and is back may push until it hears of an epoch that
// can count on it; so what is not open is no mistake.
Result<Reducer::Place> Reducer::Find(int peer, const FrameHeader& push) {
  const auto found = streams_.find(push.stream);
  if (found == streams_.end()) return Place{};
  Stream& stream = *found->second;
  if (push.from >= stream.hosts.size()) {
    return Refuse(push.stream, push.epoch,
                  "a push as host " + std::to_string(push.from) + " of " +
                      std::to_string(stream.hosts.size()));
  }
  const Stream::Host& host = stream.hosts[push.from];
  if (host.peer == kNobody || push.epoch < stream.epoch) return Place{};
  if (host.peer != peer) {
    return Refuse(
        push.stream, push.epoch,
        "a push as host " + std::to_string(push.from) + ", which another process is");
  }
  if (push.epoch > stream.epoch || !host.open) {
    return Refuse(push.stream, push.epoch, "a push before this epoch is opened");
  }
  return Place{&stream, &stream.SlotOf(push.segment)};
}

Result<Reducer::Place> Reducer::Join(int peer, const FrameHeader& push) {
  Result<Place> place = Find(peer, push);
  if (!place.ok()) return place;
  if (place->slot == nullptr) {
    ++counters_.stale;
    return place;
  }
  SMDDP_RETURN_IF_ERROR(CheckPush(push, place->stream->shape.slot_bytes));
  SMDDP_RETURN_IF_ERROR(place->slot->Join(push));
  return place;
}

Result<std::byte*> Reducer::Accept(int peer, const FrameHeader& push) {
  Result<Place> place = Join(peer, push);
  if (!place.ok()) return place.status();
  if (place->slot == nullptr) return static_cast<std::byte*>(nullptr);
  if (push.payload == 0) return &nothing_;
  Stream& stream = *place->stream;
  const uint64_t before = stream.staged;
  std::byte* const buffer =
      place->slot->Buffer(push.from, stream.shape.slot_bytes, stream.staged);
  counters_.staging_bytes += stream.staged - before;
  return buffer;
}

Status Reducer::Received(int peer, const FrameHeader& push) {
  const Result<Place> place = Find(peer, push);
  if (!place.ok()) return place.status();
  if (place->slot == nullptr) return Status();
  if (!place->slot->Joined(push)) {
    return Refuse(push.stream, push.epoch, "a push that was not accepted");
  }
  const std::byte* data = nullptr;
  if (push.payload > 0) {
    Stream& stream = *place->stream;
    data = place->slot->Buffer(push.from, stream.shape.slot_bytes, stream.staged);
  }
  return Arrived(*place, push, data);
}

Status Reducer::OpenLocal(const FrameHeader& open, const StreamShape& shape) {
  return Open(kLocal, open, shape);
}

Status Reducer::Contribute(const FrameHeader& push, std::span<const std::byte> in,
                           std::byte* out) {
  const Result<Place> place = Join(kLocal, push);
  if (!place.ok()) return place.status();
  if (place->slot == nullptr) return Status();
  place->slot->set_local_out(out);
  return Arrived(*place, push, in.empty() ? nullptr : in.data());
}

Status Reducer::Arrived(const Place& place, const FrameHeader& push,
                        const std::byte* data) {
  place.slot->Arrived(push.from, data);
  if (!place.slot->complete()) return Status();
  return Finish(*place.stream, *place.slot);
}

// Sums, and tells everybody. The last thing it does is to call the local worker, who may
// do anything: nothing of the stream may be touched after that.
Status Reducer::Finish(Stream& stream, Slot& slot) {
  bool local = false;
  bool remote = false;
  for (uint32_t i = 0; i < stream.hosts.size(); ++i) {
    const int peer = stream.hosts[i].peer;
    local = local || peer == kLocal;
    remote = remote || (peer >= 0 && slot.wants_sum(i));
  }
  std::vector<void*> outputs;
  std::byte* sum = nullptr;
  if (remote) {
    const uint64_t before = stream.staged;
    sum = slot.SumBuffer(stream.shape.slot_bytes, stream.staged);
    counters_.staging_bytes += stream.staged - before;
    outputs.push_back(sum);
  }
  if (slot.local_out() != nullptr) outputs.push_back(slot.local_out());
  {
    const Stopwatch stopwatch(counters_.seconds);
    const Result<uint64_t> summed = slot.Sum(outputs);
    if (!summed.ok()) return Refuse(stream.id, stream.epoch, summed.status().message());
    counters_.bytes_summed += *summed;
  }
  ++counters_.segments;
  SendSums(stream, slot, sum);
  const uint64_t segment = slot.segment();
  slot.Clear();
  if (local) local_done_(stream.id, stream.epoch, segment);
  return Status();
}

// Each reducer begins with another host, lest all send to one at once.
void Reducer::SendSums(const Stream& stream, const Slot& slot, const std::byte* sum) {
  FrameHeader result;
  result.kind = FrameKind::kResult;
  result.in = result.out = slot.out();
  result.stream = stream.id;
  result.epoch = stream.epoch;
  result.from = stream.shape.reducer;
  result.segment = slot.segment();
  const size_t hosts = stream.hosts.size();
  for (size_t i = 0; i < hosts; ++i) {
    const size_t host = (stream.shape.reducer + i) % hosts;
    if (stream.hosts[host].peer < 0) continue;
    const size_t size =
        slot.wants_sum(static_cast<uint32_t>(host)) ? slot.sum_bytes() : 0;
    result.payload = static_cast<uint32_t>(size);
    transport_.Send(stream.hosts[host].peer, result, {sum, size});
  }
}

void Reducer::PeerLost(int peer) {
  std::erase_if(streams_, [&](auto& entry) { return !Leave(*entry.second, peer); });
}

void Reducer::CloseLocal(uint64_t stream) {
  const auto found = streams_.find(stream);
  if (found != streams_.end() && !Leave(*found->second, kLocal)) streams_.erase(found);
}

// Returns whether anybody is left; if not, the stream may go.
bool Reducer::Leave(Stream& stream, int peer) {
  bool used = false;
  for (uint32_t i = 0; i < stream.hosts.size(); ++i) {
    Stream::Host& host = stream.hosts[i];
    if (host.peer == peer) {
      host.peer = kNobody;
      // What a remote host has pushed is here, and the others may still need its sum.
      if (peer == kLocal) stream.Withdraw(i);
    }
    used = used || host.peer != kNobody;
  }
  if (used) return true;
  transport_.Forget(stream.id);
  Free(stream);
  return false;
}

}  // namespace smddp
