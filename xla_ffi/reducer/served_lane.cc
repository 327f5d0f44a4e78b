// SPDX-License-Identifier: Apache-2.0
#include "reducer/served_lane.h"

#include <algorithm>
#include <utility>

#include "transport/probe.h"
#include "transport/tcp_transport.h"

namespace smddp {

Result<std::unique_ptr<ServedLane>> ServedLane::Start(size_t index, size_t staging_bytes,
                                                      double silence_seconds,
                                                      Events events) {
  std::unique_ptr<ServedLane> made(new ServedLane(std::move(events)));
  auto transport = MakeTcpTransport({silence_seconds}, *made);
  SMDDP_RETURN_IF_ERROR(transport.status());
  made->reducer_ = std::make_unique<Reducer>(staging_bytes, **transport, nullptr);
  made->lane_ = std::make_unique<Lane>(
      "smddp-lane-" + std::to_string(index), std::move(*transport), [] {},
      made->events_.on_failed);
  made->lane_->Start();
  return made;
}

// The thread ends before what it uses goes.
ServedLane::~ServedLane() {
  if (lane_) lane_->Stop();
}

bool ServedLane::AddPeer(int peer, UniqueFd socket) {
  const auto lock = lane_->Lock();
  const bool had = !peers_.insert(peer).second;
  if (had) reducer_->PeerLost(peer);
  lane_->transport().AddPeer(peer, std::move(socket));
  return had;
}

void ServedLane::Stop(const std::string& farewell, double seconds) {
  FrameHeader goodbye;
  goodbye.kind = FrameKind::kGoodbye;
  goodbye.payload = static_cast<uint32_t>(std::min(farewell.size(), kControlBytes));
  {
    const auto lock = lane_->Lock();
    for (const int peer : peers_) {
      lane_->transport().SendCopy(
          peer, goodbye, std::as_bytes(std::span(farewell).first(goodbye.payload)));
    }
  }
  lane_->Flush(seconds);
  lane_->Stop();
}

Reducer::Counters ServedLane::counters() {
  const auto lock = lane_->Lock();
  return reducer_->counters();
}

Result<std::byte*> ServedLane::Accept(int peer, const FrameHeader& header) {
  if (header.kind != FrameKind::kPush) {
    return Checked(Status(StatusCode::kMismatch, "a sum for a reducer"));
  }
  Result<std::byte*> where = reducer_->Accept(peer, header);
  if (!where.ok()) return Checked(where.status());
  return where;
}

Status ServedLane::Received(int peer, const FrameHeader& header,
                            std::span<const std::byte> control) {
  return Checked(Take(peer, header, control));
}

Status ServedLane::Take(int peer, const FrameHeader& header,
                        std::span<const std::byte> control) {
  switch (header.kind) {
    case FrameKind::kPush:
      return reducer_->Received(peer, header);
    case FrameKind::kOpen: {
      const Result<StreamShape> shape = DecodeShape(control);
      return shape.ok() ? reducer_->Open(peer, header, *shape) : shape.status();
    }
    case FrameKind::kProbe:
      AnswerProbe(lane_->transport(), peer, header);
      return Status();
    case FrameKind::kGoodbye:
      return Status();  // Lost follows.
    default:
      return Status(StatusCode::kMismatch,
                    "a frame of kind " + std::to_string(static_cast<int>(header.kind)) +
                        " for a reducer");
  }
}

Status ServedLane::Checked(Status status) {
  if (!status.ok()) events_.on_failed(status);
  return status;
}

void ServedLane::Lost(int peer, const std::string& why) {
  peers_.erase(peer);
  reducer_->PeerLost(peer);
  events_.on_lost(peer, why);
}

}  // namespace smddp
