// SPDX-License-Identifier: Apache-2.0
#include "wire/frame.h"

#include <string>

#include "wire/little_endian.h"

namespace smddp {
namespace {

constexpr uint8_t kReduceOps = static_cast<uint8_t>(ReduceOp::kMin) + 1;
constexpr uint8_t kDTypes = static_cast<uint8_t>(DType::kC128) + 1;
constexpr uint32_t kMostHosts = 65536;
constexpr uint32_t kLargestWindow = 65536;

Status Refuse(const char* what, uint64_t value) {
  return Status(StatusCode::kInvalidArgument,
                std::string(what) + " " + std::to_string(value) +
                    " in a frame; do all processes run the same version of smddp_jax?");
}

Status Check(std::span<const std::byte, kHeaderBytes> bytes) {
  const auto kind = std::to_integer<uint8_t>(bytes[0]);
  if (kind >= kFrameKinds) return Refuse("unknown kind", kind);
  const auto op = std::to_integer<uint8_t>(bytes[1]);
  if (op >= kReduceOps) return Refuse("unknown operator", op);
  for (size_t i : {2, 3}) {
    const auto dtype = std::to_integer<uint8_t>(bytes[i]);
    if (dtype >= kDTypes) return Refuse("unknown dtype", dtype);
  }
  return Status();
}

Status CheckPayload(const FrameHeader& header) {
  if (!IsData(header.kind)) {
    if (header.payload <= kControlBytes) return Status();
    return Refuse("control payload of bytes", header.payload);
  }
  if (header.payload % SizeOf(header.in) == 0) return Status();
  return Refuse("payload that is no whole number of elements, bytes", header.payload);
}

}  // namespace

void Encode(const FrameHeader& header, std::span<std::byte, kHeaderBytes> bytes) {
  std::byte* to = bytes.data();
  StoreLittle(to, static_cast<uint8_t>(header.kind));
  StoreLittle(to + 1, static_cast<uint8_t>(header.op));
  StoreLittle(to + 2, static_cast<uint8_t>(header.in));
  StoreLittle(to + 3, static_cast<uint8_t>(header.out));
  StoreLittle(to + 4, header.payload);
  StoreLittle(to + 8, header.stream);
  StoreLittle(to + 16, header.epoch);
  StoreLittle(to + 20, header.from);
  StoreLittle(to + 24, header.segment);
  StoreLittle(to + 32, header.value);
}

Result<FrameHeader> Decode(std::span<const std::byte, kHeaderBytes> bytes) {
  SMDDP_RETURN_IF_ERROR(Check(bytes));
  const std::byte* from = bytes.data();
  FrameHeader header;
  header.kind = FrameKind{LoadLittle<uint8_t>(from)};
  header.op = ReduceOp{LoadLittle<uint8_t>(from + 1)};
  header.in = DType{LoadLittle<uint8_t>(from + 2)};
  header.out = DType{LoadLittle<uint8_t>(from + 3)};
  header.payload = LoadLittle<uint32_t>(from + 4);
  header.stream = LoadLittle<uint64_t>(from + 8);
  header.epoch = LoadLittle<uint32_t>(from + 16);
  header.from = LoadLittle<uint32_t>(from + 20);
  header.segment = LoadLittle<uint64_t>(from + 24);
  header.value = LoadLittle<uint64_t>(from + 32);
  SMDDP_RETURN_IF_ERROR(CheckPayload(header));
  return header;
}

void Encode(const StreamShape& shape, std::span<std::byte, kShapeBytes> bytes) {
  std::byte* to = bytes.data();
  StoreLittle(to, shape.hosts);
  StoreLittle(to + 4, shape.host);
  StoreLittle(to + 8, shape.reducer);
  StoreLittle(to + 12, shape.window);
  StoreLittle(to + 16, shape.slot_bytes);
  StoreLittle(to + 24, shape.first);
}

Result<StreamShape> DecodeShape(std::span<const std::byte> bytes) {
  if (bytes.size() != kShapeBytes) return Refuse("stream shape of bytes", bytes.size());
  const std::byte* from = bytes.data();
  StreamShape shape;
  shape.hosts = LoadLittle<uint32_t>(from);
  shape.host = LoadLittle<uint32_t>(from + 4);
  shape.reducer = LoadLittle<uint32_t>(from + 8);
  shape.window = LoadLittle<uint32_t>(from + 12);
  shape.slot_bytes = LoadLittle<uint64_t>(from + 16);
  shape.first = LoadLittle<uint64_t>(from + 24);
  if (shape.hosts == 0 || shape.hosts > kMostHosts) {
    return Refuse("number of hosts", shape.hosts);
  }
  if (shape.host >= shape.hosts) return Refuse("host beyond the last,", shape.host);
  if (shape.window == 0 || shape.window > kLargestWindow) {
    return Refuse("window", shape.window);
  }
  return shape;
}

}  // namespace smddp
