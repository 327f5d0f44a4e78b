// SPDX-License-Identifier: Apache-2.0
// All cross-process collectives of one group: their order, their checks, their end.
//
// Processes reach independent collectives in different orders (measured), and staging
// is bounded, so the group needs one order: the first member's arrival order, written
// to a log in shared memory, and sent to the first member of every other host, which
// writes it to the log there. A member that has not reached the next collective holds
// the others up, which cannot deadlock: executions on a device run one at a time in
// launch order, and within one program the leader's order respects the data flow.
//
// Owned by the engine; every method is called under its progress lock.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "collective/call.h"
#include "collective/network_stage.h"
#include "collective/segment_pipeline.h"
#include "collective/workers.h"
#include "comm/local_mesh.h"
#include "host/segment_exchange.h"
#include "plan/topology.h"

namespace smddp {

// A peer's offer of memory for a group, as it came over its socket.
struct BlockOffer {
  uint64_t slot_bytes = 0;
  UniqueFd fd;
};

class GroupStream {
 public:
  struct Context {
    LocalMesh* mesh = nullptr;
    Network* network = nullptr;  // Null where the job has one host.
    Workers* workers = nullptr;
    FinishCall finish;
    // The offer of one process for one group, once it has come.
    std::function<std::optional<BlockOffer>(uint64_t group, int process)> take_offer;
    double timeout_seconds = 0;
  };

  // `host_ids`: of all processes of the job.
  GroupStream(std::shared_ptr<const Group> group,
              const std::vector<std::string>& host_ids, Context context);

  const Topology& topology() const { return topology_; }
  // Segments that may be under way at once.
  size_t slots() const { return spans_hosts() ? NetworkStage::kWindow : 8; }

  // Offers our block of `slot_bytes` per slot to the other members of this host.
  Status Open(size_t slot_bytes);
  void Add(std::unique_ptr<Call> call);
  // Does what can be done now; returns whether anything was.
  bool Progress();
  // Fails what waits too long and compares notes with peers; called now and then.
  void CheckDeadlines();
  // A member is gone; `why` completes "rank N ...". What needs nothing more from it still
  // completes.
  void Lose(int process, const std::string& why);
  // Tells the other hosts up to where we have everything. Nothing follows from us.
  void Leave();
  // Fails everything, now and later. Tells the other members unless they know.
  void Fail(StatusCode code, const std::string& why, bool tell);

  bool idle() const { return waiting_.empty() && (!pipeline_ || pipeline_->empty()); }
  const Group& group() const { return *group_; }

 private:
  struct Loss {
    std::string why;
    // A member of another host that left in good order has given all that the first
    // calls need, as many as it says.
    std::optional<uint64_t> calls;
  };

  bool spans_hosts() const { return topology_.hosts() > 1; }
  const std::vector<int>& local() const { return topology_.mine(); }
  // Fail, where the members are told `told`, or nothing if it is empty.
  void End(StatusCode code, const std::string& why, const std::string& told);
  bool Ready();
  bool MapBlocks();
  bool PublishOrder();
  bool FollowOrder();
  bool FinishDone();
  bool HearFailure();
  bool HearMail();
  void Hear(const Mail& mail);
  void FailIfLost();
  void RingAwaiting();
  void UpdateAwaiting();
  const Call* Oldest() const;
  // Who the oldest call waits for, as far as can be told; and what else it waits for.
  std::optional<int> Missing() const;
  std::optional<int> MissingElsewhere(const Call& call) const;
  // How a peer's notice contradicts `call`; empty if it does not.
  std::string Disagreement(const Call& call, int process) const;
  NoticeBoard::Notice NoticeOf(int process) const;
  void PostNotice(const Call& call);
  void TakeNoticeDown();
  std::string Name(int process) const;

  const std::shared_ptr<const Group> group_;
  const Context context_;
  const Topology topology_;
  std::map<int, Loss> losses_;  // By process.
  Status broken_;               // Not ok: every call fails with it.
  uint64_t my_slot_bytes_ = 0;
  std::vector<SharedMemory> blocks_;  // By local member; only ours until all are mapped.
  std::vector<std::optional<BlockOffer>> offers_;
  std::unique_ptr<SegmentExchange> exchange_;
  std::unique_ptr<NetworkStage> network_;  // Null on one host, and off the rails.
  std::unique_ptr<SegmentPipeline> pipeline_;
  std::unordered_map<uint64_t, std::unique_ptr<Call>> waiting_;  // By tag, not ordered.
  std::deque<uint64_t> unpublished_;  // First member of all: tags in order of arrival.
  std::deque<OrderEntry> ordered_;    // First member of another host: what comes next.
  uint64_t next_entry_ = 0;           // The log entry to follow next.
  uint64_t noticed_ = 0;              // Tag of the call on our notice board.
};

}  // namespace smddp
