// SPDX-License-Identifier: Apache-2.0
// A group of ranks on the host, the calls that they are given, and the tensors in them.
#pragma once

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "device/make_call.h"
#include "tests/device/host_kernels.h"
#include "tests/reduce/reference.h"

namespace smddp::device::testing {

using smddp::testing::Bytes;

// Memory of the user's with guards on both sides, at a chosen distance from a vector.
class UserArray {
 public:
  static constexpr uint8_t kGuard = 0xa5;

  explicit UserArray(size_t size, size_t misalignment = 0)
      : size_(size),
        begin_(64 + misalignment),
        bytes_(size + 128 + misalignment, kGuard) {}
  UserArray(const Bytes& value, size_t misalignment = 0)
      : UserArray(value.size(), misalignment) {
    std::copy(value.begin(), value.end(), data());
  }

  uint8_t* data() { return bytes_.data() + begin_; }
  Bytes Value() { return {data(), data() + size_}; }
  // Whether nothing but the array itself was written.
  bool GuardsHold() const {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      const bool outside = i < begin_ || i >= begin_ + size_;
      if (outside && bytes_[i] != kGuard) return false;
    }
    return true;
  }

 private:
  size_t size_;
  size_t begin_;
  Bytes bytes_;  // From operator new: its start is aligned to 16 bytes.
};

// What a call reads and writes on one rank.
struct Arrays {
  std::vector<UserArray> from;
  std::vector<UserArray> to;
  std::vector<Tensor> tensors;

  void Add(const Bytes& value, size_t result_bytes, size_t count, size_t misalignment) {
    from.emplace_back(value, misalignment);
    to.emplace_back(result_bytes, misalignment);
    tensors.push_back({from.back().data(), to.back().data(), count});
  }
};

class Ranks {
 public:
  explicit Ranks(uint32_t ranks, size_t half_bytes = size_t{1} << 17)
      : ranks_(ranks), flags_(ranks), watches_(ranks), streams_(ranks) {
    for (uint32_t r = 0; r < ranks; ++r) {
      staging_.push_back(std::make_unique<Vector[]>(2 * half_bytes / sizeof(Vector)));
    }
    for (uint32_t me = 0; me < ranks; ++me) {
      Group& group = groups_.emplace_back();
      group.rank = me;
      group.ranks = ranks;
      group.half_bytes = half_bytes;
      group.watch = &watches_[me];
      for (uint32_t r = 0; r < ranks; ++r) {
        group.flags[r] = &flags_[r];
        group.staging[r] = reinterpret_cast<char*>(staging_[r].get());
      }
    }
  }

  uint32_t size() const { return ranks_; }
  const Group& group(uint32_t rank) const { return groups_[rank]; }
  Watch& watch(uint32_t rank) { return watches_[rank]; }
  Flags& flags(uint32_t rank) { return flags_[rank]; }

  // Appends to `rank`'s stream, with blocks of which a test can afford that many threads.
  void Enqueue(uint32_t rank, HostFunction function, Result<Call> call, uint32_t blocks) {
    ASSERT_TRUE(call.ok()) << call.status().message();
    ASSERT_NE(function, nullptr);
    call->blocks = blocks;
    streams_[rank].push_back({function, *call});
  }

  // Starts what was enqueued on `rank`.
  std::unique_ptr<Stream> Start(uint32_t rank, uint32_t threads_in_block = 2) {
    return std::make_unique<Stream>(std::exchange(streams_[rank], {}), threads_in_block);
  }

  // Runs what was enqueued on all ranks.
  void Run(uint32_t threads_in_block = 2) {
    std::vector<std::unique_ptr<Stream>> running;
    for (uint32_t r = 0; r < ranks_; ++r) running.push_back(Start(r, threads_in_block));
  }

  void Abort(uint32_t rank) { HostExecution::StoreRelease(&watches_[rank].abort, 1); }
  GaveUp WhatGaveUp(uint32_t rank) {
    return GaveUp::Unpack(HostExecution::LoadAcquire(&watches_[rank].gave_up));
  }

 private:
  const uint32_t ranks_;
  std::vector<Flags> flags_;
  std::vector<Watch> watches_;
  std::vector<std::unique_ptr<Vector[]>> staging_;
  std::vector<Group> groups_;
  std::vector<std::vector<Launch>> streams_;
};

}  // namespace smddp::device::testing
