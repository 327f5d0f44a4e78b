// SPDX-License-Identifier: Apache-2.0
#include "transport/outbox.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace smddp {
namespace {

// After so much the next peer has its turn.
constexpr size_t kTurnBytes = size_t{1} << 20;

}  // namespace

Outbox::Frame::Frame(const FrameHeader& header, std::span<const std::byte> bytes)
    : kind(header.kind), stream(header.stream), epoch(header.epoch), payload(bytes) {
  FrameHeader exact = header;
  exact.payload = static_cast<uint32_t>(bytes.size());
  Encode(exact, head);
}

void Outbox::Frame::Copy() {
  copy.assign(payload.begin(), payload.end());
  payload = copy;
}

void Outbox::Batch::Add(std::span<const std::byte> part) {
  if (part.empty()) return;
  parts[count++] = {const_cast<std::byte*>(part.data()), part.size()};
  bytes += part.size();
}

void Outbox::Batch::Add(const Frame& frame, size_t sent) {
  const size_t of_head = std::min(sent, kHeaderBytes);
  Add(std::span(frame.head).subspan(of_head));
  Add(frame.payload.subspan(sent - of_head));
}

std::deque<Outbox::Frame>& Outbox::QueueOf(FrameKind kind) {
  // kOpen makes room for the pushes that follow it and ends those before it. A probe's
  // answer must not wait behind probes that go the same way.
  const bool waits =
      kind == FrameKind::kPush || kind == FrameKind::kOpen || kind == FrameKind::kProbe;
  return waits ? pushes_ : urgent_;
}

void Outbox::Add(const FrameHeader& header, std::span<const std::byte> payload) {
  QueueOf(header.kind).emplace_back(header, payload);
}

void Outbox::AddCopy(const FrameHeader& header, std::span<const std::byte> payload) {
  QueueOf(header.kind).emplace_back(header, payload).Copy();
}

Outbox::Batch Outbox::NextBatch() const {
  Batch batch;
  if (current_) batch.Add(*current_, sent_);
  for (const auto* queue : {&urgent_, &pushes_}) {
    for (const Frame& frame : *queue) {
      if (batch.full()) return batch;
      batch.Add(frame, 0);
    }
  }
  return batch;
}

void Outbox::Sent(size_t bytes, Transport::Counters& counters) {
  counters.bytes_sent += bytes;
  while (bytes > 0) {
    if (!current_) {
      std::deque<Frame>& queue = urgent_.empty() ? pushes_ : urgent_;
      current_.emplace(std::move(queue.front()));
      queue.pop_front();
      sent_ = 0;
    }
    const size_t step = std::min(bytes, current_->size() - sent_);
    sent_ += step;
    bytes -= step;
    if (sent_ < current_->size()) return;
    current_.reset();
    ++counters.frames_sent;
  }
}

Status Outbox::Write(int socket, Transport::Counters& counters) {
  for (size_t turn = 0; turn < kTurnBytes && !empty();) {
    Batch batch = NextBatch();
    msghdr message = {};
    message.msg_iov = batch.parts.data();
    message.msg_iovlen = static_cast<size_t>(batch.count);
    const ssize_t taken = ::sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (taken < 0) {
      if (errno == EINTR) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return Status();
      return SystemError("sending");
    }
    Sent(static_cast<size_t>(taken), counters);
    if (static_cast<size_t>(taken) < batch.bytes) return Status();
    turn += static_cast<size_t>(taken);
  }
  return Status();
}

void Outbox::Forget(uint64_t stream, uint32_t epoch) {
  const auto belongs = [&](const Frame& frame) {
    return IsData(frame.kind) && frame.stream == stream && frame.epoch < epoch;
  };
  std::erase_if(urgent_, belongs);
  std::erase_if(pushes_, belongs);
  if (current_ && belongs(*current_) && current_->copy.empty()) {
    current_->Copy();
  }
}

void Outbox::Clear() {
  current_.reset();
  urgent_.clear();
  pushes_.clear();
}

}  // namespace smddp
