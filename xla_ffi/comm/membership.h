// SPDX-License-Identifier: Apache-2.0
// Which dedicated reducers a stream uses, and from which segment on: the agreement.
//
// The stream's hosts must switch at the same segment. The first host leads: it tells all
// to stop pushing (prepare), hears up to where each has results (prepared), and names the
// new set and the first segment that somebody misses, from which all push again (commit).
// Every change is a new epoch; frames of an older one are thrown away wherever they
// arrive. A reducer is used while every host is connected to it.
//
// A pure state machine: it reads no clock and sends nothing itself. Owned by a
// ShardExchange, under its lane's lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "base/status.h"
#include "wire/frame.h"

namespace smddp {

class Membership {
 public:
  using Set = std::vector<uint8_t>;  // By dedicated reducer: 1 where it is used.

  struct Commit {
    uint32_t epoch = 0;
    uint64_t base = 0;  // The first segment of the epoch.
    Set set;
  };

  struct Actions {
    // Sends a control frame to another host; kind, epoch, segment and value are set.
    std::function<void(size_t host, const FrameHeader&, std::span<const uint8_t> payload)>
        send;
    // How many segments have all their results here. No more are pushed until the commit.
    std::function<uint64_t()> prepare;
    std::function<void(const Commit&)> commit;
  };

  // Starts in epoch 0 with all `reducers` in use.
  Membership(size_t hosts, size_t me, size_t reducers, Actions actions);

  uint32_t epoch() const { return epoch_; }
  const Set& set() const { return set_; }
  // Between prepare and commit.
  bool frozen() const { return frozen_; }

  // Every host follows now. Until then the leader only takes notes.
  void Begin();
  // This host's connection to a reducer.
  void Lost(size_t reducer);
  void Connected(size_t reducer);
  // A kSuspect, kReady, kPrepare, kPrepared or kCommit frame of another host.
  Status Handle(size_t host, const FrameHeader& header,
                std::span<const std::byte> payload);

 private:
  bool leads() const { return me_ == 0; }
  void Note(size_t host, size_t reducer, bool connected);
  void Consider();
  void Prepare(uint32_t epoch);
  void Answer(size_t host, uint64_t completed);
  void Apply(const Commit& commit);

  const size_t hosts_;
  const size_t me_;
  const size_t reducers_;
  const Actions actions_;
  uint32_t epoch_ = 0;
  Set set_;
  bool frozen_ = false;

  // Leader only.
  bool begun_ = false;
  std::vector<Set> connected_;  // By host.
  bool stale_ = false;          // A reducer lost what it knew, even if it is back.
  Commit next_;
  std::vector<std::optional<uint64_t>> answers_;  // Empty: no change under way.
};

}  // namespace smddp
