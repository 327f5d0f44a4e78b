// SPDX-License-Identifier: Apache-2.0
#include "collective/network_lane.h"

#include <utility>

#include "transport/probe.h"
#include "transport/tcp_transport.h"

namespace smddp {
namespace {

std::string TextOf(std::span<const std::byte> bytes) {
  return std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

}  // namespace

NetworkLane::NetworkLane(size_t index, int processes, Events events)
    : index_(index), processes_(processes), events_(std::move(events)) {}

Result<std::unique_ptr<NetworkLane>> NetworkLane::Make(size_t index, int processes,
                                                       const Settings& settings,
                                                       Events events) {
  std::unique_ptr<NetworkLane> made(new NetworkLane(index, processes, std::move(events)));
  NetworkLane* const raw = made.get();
  auto transport = MakeTcpTransport({settings.silence_seconds}, *raw);
  SMDDP_RETURN_IF_ERROR(transport.status());
  made->lane_ =
      std::make_unique<Lane>("smddp-net-" + std::to_string(index), std::move(*transport),
                             raw->events_.after, raw->events_.on_failed);
  made->reducer_ = std::make_unique<Reducer>(
      settings.staging_bytes / static_cast<size_t>(settings.connections),
      made->transport(), [raw](uint64_t stream, uint32_t epoch, uint64_t segment) {
        if (auto* exchange = raw->ExchangeOf(stream)) exchange->LocalDone(epoch, segment);
      });
  return made;
}

// The thread ends before what it uses goes.
NetworkLane::~NetworkLane() {
  if (lane_) lane_->Stop();
}

void NetworkLane::Attach(uint64_t stream, ShardExchange* exchange) {
  exchanges_.insert_or_assign(stream, exchange);
}

void NetworkLane::Detach(uint64_t stream) { exchanges_.erase(stream); }

void NetworkLane::AddPeer(int peer, UniqueFd socket) {
  transport().AddPeer(peer, std::move(socket));
  if (peer < processes_) return;
  for (const auto& [stream, exchange] : exchanges_) {
    exchange->ReducerConnected(static_cast<size_t>(peer - processes_));
  }
}

ShardExchange* NetworkLane::ExchangeOf(uint64_t stream) const {
  const auto found = exchanges_.find(stream);
  return found == exchanges_.end() ? nullptr : found->second;
}

Result<std::byte*> NetworkLane::Accept(int peer, const FrameHeader& header) {
  if (header.kind == FrameKind::kPush) return reducer_->Accept(peer, header);
  ShardExchange* const exchange = ExchangeOf(header.stream);
  // A sum for a group that failed here meanwhile.
  if (exchange == nullptr) return static_cast<std::byte*>(nullptr);
  return exchange->Accept(header);
}

Status NetworkLane::Received(int peer, const FrameHeader& header,
                             std::span<const std::byte> control) {
  switch (header.kind) {
    case FrameKind::kHeartbeat:
      return Status();
    case FrameKind::kGoodbye:
      // Its connection stays until its process ends: it may still send sums. Up to where
      // it has taken part came before this on the first lane, and there alone.
      leaving_.insert(peer);
      if (peer < processes_ && index_ == 0) {
        events_.on_lost(peer, "left the job: " + TextOf(control));
      }
      return Status();
    case FrameKind::kOpen: {
      auto shape = DecodeShape(control);
      SMDDP_RETURN_IF_ERROR(shape.status());
      return reducer_->Open(peer, header, *shape);
    }
    case FrameKind::kProbe:
      AnswerProbe(transport(), peer, header);
      return Status();
    case FrameKind::kProbed:
      events_.on_probed(peer, header.value);
      return Status();
    case FrameKind::kPush:
      return reducer_->Received(peer, header);
    case FrameKind::kResult:
    case FrameKind::kSuspect:
    case FrameKind::kReady:
    case FrameKind::kPrepare:
    case FrameKind::kPrepared:
    case FrameKind::kCommit: {
      ShardExchange* const exchange = ExchangeOf(header.stream);
      return exchange == nullptr ? Status() : exchange->Received(peer, header, control);
    }
    default: {
      if (peer >= processes_) {
        return Status(StatusCode::kInvalidArgument, "a reducer sent a worker's frame");
      }
      events_.on_mail(header.stream,
                      {header.kind, peer, header.segment, header.value, TextOf(control)});
      return Status();
    }
  }
}

void NetworkLane::Lost(int peer, const std::string& why) {
  reducer_->PeerLost(peer);
  if (peer >= processes_) {
    for (const auto& [stream, exchange] : exchanges_) {
      exchange->ReducerLost(static_cast<size_t>(peer - processes_));
    }
  }
  if (peer < processes_ && leaving_.contains(peer)) return;
  leaving_.erase(peer);
  events_.on_lost(peer, why);
}

}  // namespace smddp
