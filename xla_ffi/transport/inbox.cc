// SPDX-License-Identifier: Apache-2.0
#include "transport/inbox.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

namespace smddp {
namespace {

// After so much the next peer has its turn.
constexpr size_t kTurnBytes = size_t{256} << 10;
// Room for a few headers, however much of a payload is still to come.
constexpr size_t kLeastRoom = size_t{4} << 10;

Status BrokeTheProtocol(const Status& how) {
  return Status(how.code(), "broke the protocol: " + how.message());
}

}  // namespace

Inbox::Target Inbox::NextTarget() {
  Target target;
  if (in_payload_ && destination_ != nullptr) {
    target.payload = missing();
    target.parts[target.count++] = {destination_ + got_, target.payload};
  }
  // What lands in the buffer is copied once more: little of it behind a long payload.
  size_t room = buffer_.size() - end_;
  if (target.payload > 0) {
    room -= std::min(target.payload, buffer_.size() - kLeastRoom);
  }
  target.parts[target.count++] = {buffer_.data() + end_, room};
  target.bytes = target.payload + room;
  return target;
}

Result<bool> Inbox::Read(int socket, Transport::Counters& counters) {
  for (size_t turn = 0; turn < kTurnBytes && !closed_;) {
    const Target target = NextTarget();
    const ssize_t read = ::readv(socket, target.parts.data(), target.count);
    if (read < 0 && errno == EINTR) continue;
    if (read < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (read <= 0) return Ended(read < 0 ? errno : 0);
    const auto bytes = static_cast<size_t>(read);
    counters.bytes_received += bytes;
    const size_t direct = std::min(bytes, target.payload);
    got_ += direct;
    end_ += bytes - direct;
    SMDDP_RETURN_IF_ERROR(Parse(counters));
    if (bytes < target.bytes) return false;
    turn += bytes;
  }
  return !closed_;
}

// Takes everything from the buffer but a header that is not whole yet.
Status Inbox::Parse(Transport::Counters& counters) {
  while (!closed_) {
    if (!in_payload_) {
      if (buffered() < kHeaderBytes) break;
      SMDDP_RETURN_IF_ERROR(BeginFrame());
      continue;
    }
    TakePayload();
    if (missing() > 0) break;
    in_payload_ = false;
    ++counters.frames_received;
    SMDDP_RETURN_IF_ERROR(Deliver());
  }
  std::memmove(buffer_.data(), buffer_.data() + begin_, buffered());
  end_ -= begin_;
  begin_ = 0;
  return Status();
}

void Inbox::TakePayload() {
  const size_t bytes = std::min(missing(), buffered());
  if (destination_ != nullptr && bytes > 0) {
    std::memcpy(destination_ + got_, buffer_.data() + begin_, bytes);
  }
  got_ += bytes;
  begin_ += bytes;
}

Status Inbox::BeginFrame() {
  Result<FrameHeader> header =
      Decode(std::span(buffer_).subspan(begin_).first<kHeaderBytes>());
  if (!header.ok()) return BrokeTheProtocol(header.status());
  begin_ += kHeaderBytes;
  std::byte* destination = control_.data();
  if (IsData(header->kind)) {
    Result<std::byte*> accepted = receiver_.Accept(peer_, *header);
    if (!accepted.ok()) return BrokeTheProtocol(accepted.status());
    destination = *accepted;
  }
  header_ = *header;
  destination_ = destination;
  got_ = 0;
  in_payload_ = true;
  return Status();
}

Status Inbox::Deliver() {
  if (destination_ == nullptr || header_.kind == FrameKind::kHeartbeat) return Status();
  std::span<const std::byte> control;
  if (!IsData(header_.kind)) control = std::span(control_).first(header_.payload);
  if (header_.kind == FrameKind::kGoodbye) {
    farewell_.emplace(reinterpret_cast<const char*>(control.data()), control.size());
  }
  const Status received = receiver_.Received(peer_, header_, control);
  return received.ok() ? Status() : BrokeTheProtocol(received);
}

void Inbox::Forget(uint64_t stream, uint32_t epoch) {
  if (in_payload_ && IsData(header_.kind) && header_.stream == stream &&
      header_.epoch < epoch) {
    destination_ = nullptr;
  }
}

Status Inbox::Ended(int error) const {
  std::string why = "is gone: its process ended or was killed";
  if (farewell_) {
    why = "left the job: " + *farewell_;
  } else if (error != 0 && error != ECONNRESET && error != EPIPE) {
    errno = error;
    why = SystemError("is gone: the network between us failed").message();
  }
  return Status(StatusCode::kPeerLost, why);
}

}  // namespace smddp
