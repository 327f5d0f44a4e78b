// SPDX-License-Identifier: Apache-2.0
// All cross-process collectives of one group: their order, their checks, their end.
//
// Processes reach independent collectives in different orders (measured), and staging
// is bounded, so the group needs one order: the first member's arrival order, written
// to a log in shared memory. A member that has not reached the next collective holds
// the others up, which cannot deadlock: executions on a device run one at a time in
// launch order, and within one program the leader's order respects the data flow.
//
// Owned by the engine; every method is called under its progress lock.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "collective/call.h"
#include "collective/host_all_reduce.h"
#include "collective/workers.h"
#include "comm/local_mesh.h"
#include "host/segment_exchange.h"

namespace smddp {

// A peer's offer of memory for a group, as it came over its socket.
struct BlockOffer {
  uint64_t slot_bytes = 0;
  UniqueFd fd;
};

class GroupStream {
 public:
  // Segments that may be under way at once.
  static constexpr size_t kSlots = 8;

  struct Context {
    LocalMesh* mesh = nullptr;
    Workers* workers = nullptr;
    FinishCall finish;
    // The offer of one process for one group, once it has come.
    std::function<std::optional<BlockOffer>(uint64_t group, int process)> take_offer;
    double timeout_seconds = 0;
  };

  GroupStream(std::shared_ptr<const Group> group, Context context);

  // Offers our block of `slot_bytes` per slot to the other members.
  Status Open(size_t slot_bytes);
  void Add(std::unique_ptr<Call> call);
  // Does what can be done now; returns whether anything was.
  bool Progress();
  // Fails what waits too long and compares notes with peers; called now and then.
  void CheckDeadlines();
  // A member is gone. What needs nothing more from it still completes.
  void Lose(const std::string& why) { lost_ = why; }
  // Fails everything, now and later. Tells the other members unless they know.
  void Fail(StatusCode code, const std::string& why, bool tell);

  bool idle() const { return waiting_.empty() && (!running_ || running_->empty()); }
  const Group& group() const { return *group_; }

 private:
  bool MapBlocks();
  bool PublishOrder();
  bool FollowOrder();
  bool FinishDone();
  bool HearFailure();
  void RingAwaiting();
  void UpdateAwaiting();
  const Call* Oldest() const;
  // The member that the oldest call waits for, as far as can be told.
  std::optional<size_t> Missing() const;
  // How a peer's notice contradicts `call`; empty if it does not.
  std::string Disagreement(const Call& call, size_t member) const;
  NoticeBoard::Notice NoticeOf(size_t member) const;
  void PostNotice(const Call& call);
  void TakeNoticeDown();
  std::string Name(size_t member) const;

  const std::shared_ptr<const Group> group_;
  const Context context_;
  std::string lost_;  // Why a member is gone; empty: all are there.
  Status broken_;     // Not ok: every call fails with it.
  uint64_t my_slot_bytes_ = 0;
  std::vector<SharedMemory> blocks_;  // By member; only ours until all are mapped.
  std::vector<std::optional<BlockOffer>> offers_;
  std::unique_ptr<SegmentExchange> exchange_;
  std::unique_ptr<HostAllReduce> running_;
  std::unordered_map<uint64_t, std::unique_ptr<Call>> waiting_;  // By tag, not ordered.
  std::deque<uint64_t> unpublished_;  // Leader: tags in order of arrival.
  uint64_t next_entry_ = 0;           // The log entry to follow next.
  uint64_t noticed_ = 0;              // Tag of the call on our notice board.
};

}  // namespace smddp
