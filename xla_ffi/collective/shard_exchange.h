// SPDX-License-Identifier: Apache-2.0
// The network stage of one stream: segments are pushed, shard by shard, to the reducers
// that own them, and the sums come back.
//
// Segments are numbered 0, 1, 2, ... for the life of the stream; `window` of them may be
// under way. A host that pushes segment t has the sum of t - window, which needed every
// host's push, and so every host has the sums of all up to t - 2 window: contributions
// are kept for two windows and can be pushed again when a reducer is lost.
//
// Owned by a NetworkStage. Its lane's lock guards every method but those marked, which
// belong to the thread that holds the engine's progress lock.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/status.h"
#include "comm/membership.h"
#include "plan/shares.h"
#include "reducer/reducer.h"
#include "transport/transport.h"
#include "wire/frame.h"

namespace smddp {

class ShardExchange {
 public:
  struct Shape {
    uint64_t stream = 0;
    size_t me = 0;                     // Our index among the hosts.
    std::vector<int> peers;            // Of each host: who talks for it on this rail.
    int first_reducer = 0;             // Peer number of dedicated reducer 0.
    size_t window = 0;                 // Segments that may be under way.
    size_t segment_bytes = 0;          // The largest contribution.
    std::vector<double> worker_nics;   // Relative speeds, by host.
    std::vector<double> reducer_nics;  // Of the dedicated reducers.

    size_t hosts() const { return peers.size(); }
    size_t dedicated() const { return reducer_nics.size(); }
  };

  // One host's contribution to a segment, and where the sum goes.
  struct Segment {
    ReduceOp op = ReduceOp::kSum;
    DType in = DType::kF32;   // Of the contribution.
    DType out = DType::kF32;  // Of the sum.
    size_t elements = 0;
    // Ours, until the sum is there or Keep: the memory of a Slot(), or the caller's.
    const std::byte* data = nullptr;
    std::byte* result = nullptr;
    // Of a scatter or a gather: the host that alone needs the sum, or alone adds to it,
    // and whose reducer makes it. None: all hosts do, and all reducers have shards.
    std::optional<size_t> owner;
    bool adds = true;   // Whether we have something to add, and
    bool needs = true;  // whether we need the sum.
  };

  // `fail` hears why the stream cannot go on.
  ShardExchange(Shape shape, Transport& transport, Reducer& reducer,
                std::function<void(const Status&)> fail);

  // Memory for the contribution to segment `index`. Progress lock.
  std::byte* Slot(uint64_t index);
  // Whether the segment after the last may be pushed. Progress lock.
  bool CanPush() const { return next_ < completed() + shape_.window; }
  // Segments whose sums are all there: those before this number. Any thread.
  uint64_t completed() const { return completed_.load(std::memory_order_acquire); }

  // All hosts have an exchange of this stream: pushing may begin.
  void Begin();
  void Push(Segment segment);
  // Copies what contributions of `first` to `last` still lie in the caller's memory and
  // may be needed again.
  void Keep(uint64_t first, uint64_t last);
  // Cuts every tie with the callers' memory. Nothing may be pushed any more.
  void Close();

  // The dedicated reducers' comings and goings.
  void ReducerLost(size_t reducer);
  void ReducerConnected(size_t reducer);
  // What arrives for this stream. Returns as Transport::Receiver.
  Result<std::byte*> Accept(const FrameHeader& result);
  Status Received(int peer, const FrameHeader& header,
                  std::span<const std::byte> control);
  // The co-located reducer has written its shard.
  void LocalDone(uint32_t epoch, uint64_t segment);
  // "reducer 2" or "the reducer of rank 3", for which segment completed() waits.
  std::string WaitsFor() const;

 private:
  struct Record {
    Segment segment;
    std::vector<Shard> shards;
    std::vector<bool> there;  // By shard: whether its sum is.
    size_t missing = 0;
    bool pushed = false;  // In this epoch.
    bool complete = false;
  };

  size_t OwnReducer() const { return shape_.dedicated() + shape_.me; }
  int PeerOf(size_t reducer) const;
  Record& RecordOf(uint64_t index) { return records_[index % records_.size()]; }
  const Record& RecordOf(uint64_t index) const {
    return records_[index % records_.size()];
  }
  void OpenStreams(uint64_t first);
  std::vector<Shard> ShardsOfSegment(uint64_t index, const Segment& segment) const;
  void PushShards(uint64_t index, Record& record);
  void Apply(const Membership::Commit& commit);
  void KeepOne(uint64_t index);
  // Of a result frame: its record and which of its shards; null if nobody waits for it.
  Result<Record*> Find(const FrameHeader& result, size_t* shard);
  void ShardDone(Record& record, size_t shard);

  const Shape shape_;
  Transport& transport_;
  Reducer& reducer_;
  const std::function<void(const Status&)> fail_;
  Membership membership_;
  Shares shares_;
  bool open_ = false;
  bool closed_ = false;
  uint64_t next_ = 0;  // Written with both locks, so read with either.
  std::atomic<uint64_t> completed_{0};
  std::vector<Record> records_;
  std::vector<std::unique_ptr<std::byte[]>> slots_;
};

}  // namespace smddp
