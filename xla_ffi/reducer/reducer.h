// SPDX-License-Identifier: Apache-2.0
// Sums shards: takes the contributions of all hosts to a segment and gives everybody
// the result.
//
// One class for a dedicated reducer and for one inside a worker. Contributions are
// combined in host order whatever order they come in. Owned by what owns the lane; used
// under the lane's lock only.
//
// Flow control needs no frames of its own: a host pushes segment s + window only after
// it has the result of s, so a slot is never needed twice at once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>

#include "base/status.h"
#include "reducer/slot.h"
#include "transport/transport.h"
#include "wire/frame.h"

namespace smddp {

class Reducer {
 public:
  // The shard of `segment` that the local worker contributed to is in its `out`.
  using LocalDone =
      std::function<void(uint64_t stream, uint32_t epoch, uint64_t segment)>;

  struct Counters {
    uint64_t segments = 0;       // Summed.
    uint64_t bytes_summed = 0;   // Of contributions.
    double seconds = 0;          // Spent summing.
    uint64_t stale = 0;          // Frames of no epoch that is open, thrown away.
    uint64_t staging_bytes = 0;  // Memory in use.
  };

  // `staging_bytes` bounds what all streams together may hold. `local_done` may be empty
  // (a dedicated reducer).
  Reducer(size_t staging_bytes, Transport& transport, LocalDone local_done);
  ~Reducer();

  // Frames of a peer. An error means that it breaks the protocol, or asks for more memory
  // than there is; it names the value and the remedy, and leaves naming the peer to the
  // caller.
  Status Open(int peer, const FrameHeader& open, const StreamShape& shape);
  // Where to receive the contribution; null if its epoch is over, or its stream not open.
  Result<std::byte*> Accept(int peer, const FrameHeader& push);
  Status Received(int peer, const FrameHeader& push);
  // Streams that the peer opened are dropped when all who opened them are gone.
  void PeerLost(int peer);

  // The same for the worker that this reducer lives in. `in` is read and `out` written
  // until LocalDone or Close; the contribution is not copied.
  Status OpenLocal(const FrameHeader& open, const StreamShape& shape);
  Status Contribute(const FrameHeader& push, std::span<const std::byte> in,
                    std::byte* out);
  // The local worker needs the stream no more, now: drops its `in` and `out` pointers.
  void CloseLocal(uint64_t stream);

  const Counters& counters() const { return counters_; }

 private:
  struct Stream;
  // Where a push belongs; null if its epoch is over, or its stream not open.
  struct Place {
    Stream* stream = nullptr;
    Slot* slot = nullptr;
  };

  bool inside_worker() const { return static_cast<bool>(local_done_); }
  Status CheckClaim(const Stream& stream, int peer, const FrameHeader& open,
                    const StreamShape& shape) const;
  Status Begin(Stream& stream, const FrameHeader& open, const StreamShape& shape);
  Result<Place> Find(int peer, const FrameHeader& push);
  Result<Place> Join(int peer, const FrameHeader& push);
  Status Arrived(const Place& place, const FrameHeader& push, const std::byte* data);
  Status Finish(Stream& stream, Slot& slot);
  void SendSums(const Stream& stream, const Slot& slot, const std::byte* sum);
  bool Leave(Stream& stream, int peer);
  void Free(Stream& stream);

  const size_t staging_limit_;
  Transport& transport_;
  const LocalDone local_done_;
  Counters counters_;
  std::byte nothing_ = {};  // Where payloads of no bytes go.
  size_t promised_ = 0;     // What the open streams may come to hold; within the limit.
  std::unordered_map<uint64_t, std::unique_ptr<Stream>> streams_;
};

}  // namespace smddp
