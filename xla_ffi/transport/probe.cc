// SPDX-License-Identifier: Apache-2.0
#include "transport/probe.h"

#include <array>

namespace smddp {
namespace {

constexpr size_t kFrameBytes = kHeaderBytes + kControlBytes;
constexpr std::array<std::byte, kControlBytes> kNothing = {};

FrameHeader Header(FrameKind kind, uint64_t burst, size_t payload) {
  FrameHeader header;
  header.kind = kind;
  header.value = burst;
  header.payload = static_cast<uint32_t>(payload);
  return header;
}

}  // namespace

void SendProbe(Transport& transport, int peer, size_t bytes, uint64_t burst) {
  const size_t more = bytes / kFrameBytes;
  for (size_t i = 0; i < more; ++i) {
    transport.Send(peer, Header(FrameKind::kProbe, 0, kControlBytes), kNothing);
  }
  transport.Send(peer, Header(FrameKind::kProbe, burst, 0), {});
}

void AnswerProbe(Transport& transport, int peer, const FrameHeader& probe) {
  if (probe.value == 0) return;
  transport.Send(peer, Header(FrameKind::kProbed, probe.value, 0), {});
}

}  // namespace smddp
