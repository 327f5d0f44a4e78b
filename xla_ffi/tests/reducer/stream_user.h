// SPDX-License-Identifier: Apache-2.0
// A host's side of one stream, for tests: makes the frames and feeds them to a Reducer.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "reducer/reducer.h"
#include "tests/reduce/reference.h"

namespace smddp::testing {

struct StreamUser {
  int peer = 0;
  uint64_t stream = 7;
  uint32_t epoch = 0;
  StreamShape shape = {.hosts = 2, .window = 4, .slot_bytes = 1 << 12};

  FrameHeader OpenFrame() const {
    FrameHeader open;
    open.kind = FrameKind::kOpen;
    open.stream = stream;
    open.epoch = epoch;
    open.payload = kShapeBytes;
    return open;
  }

  FrameHeader PushFrame(uint64_t segment, ReduceOp op, DType in, DType out,
                        size_t bytes) const {
    FrameHeader push;
    push.kind = FrameKind::kPush;
    push.op = op;
    push.in = in;
    push.out = out;
    push.payload = static_cast<uint32_t>(bytes);
    push.stream = stream;
    push.epoch = epoch;
    push.from = shape.host;
    push.segment = segment;
    return push;
  }
  FrameHeader PushFrame(uint64_t segment, const Bytes& bytes) const {
    return PushFrame(segment, ReduceOp::kSum, DType::kF32, DType::kF32, bytes.size());
  }

  Status Open(Reducer& reducer) const { return reducer.Open(peer, OpenFrame(), shape); }
  // All of a push at once.
  Status Push(Reducer& reducer, const FrameHeader& push, const Bytes& bytes) const {
    const Result<std::byte*> where = reducer.Accept(peer, push);
    if (!where.ok()) return where.status();
    if (*where == nullptr) return Status();  // As a transport does.
    std::copy(bytes.begin(), bytes.end(), reinterpret_cast<uint8_t*>(*where));
    return reducer.Received(peer, push);
  }
  Status Push(Reducer& reducer, uint64_t segment, const Bytes& bytes) const {
    return Push(reducer, PushFrame(segment, bytes), bytes);
  }
};

// One for each of `hosts` hosts of a stream; their peer numbers are 10, 11, ...
inline std::vector<StreamUser> UsersOf(uint64_t stream, uint32_t hosts) {
  std::vector<StreamUser> users(hosts);
  for (uint32_t i = 0; i < hosts; ++i) {
    users[i].peer = static_cast<int>(10 + i);
    users[i].stream = stream;
    users[i].shape.hosts = hosts;
    users[i].shape.host = i;
    users[i].shape.reducer = 1;
  }
  return users;
}

template <class T>
Bytes BytesOf(const std::vector<T>& values) {
  Bytes bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace smddp::testing

#define ASSERT_OK(expression)                       \
  do {                                              \
    const ::smddp::Status status_ = (expression);   \
    ASSERT_TRUE(status_.ok()) << status_.message(); \
  } while (false)

#define EXPECT_REFUSED(expression, part)                                             \
  do {                                                                               \
    const ::smddp::Status status_ = (expression);                                    \
    EXPECT_FALSE(status_.ok());                                                      \
    EXPECT_NE(status_.message().find(part), std::string::npos) << status_.message(); \
  } while (false)
