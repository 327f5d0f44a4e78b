// SPDX-License-Identifier: Apache-2.0
#include "collective/group_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace smddp {
namespace {

// A call that waits this long is posted on the notice board for the peers to see.
constexpr double kNoticeSeconds = 1.0;

OrderEntry EntryFor(const Call& call) {
  OrderEntry entry;
  entry.tag = call.tag;
  entry.signature = call.signature->hash;
  const std::string& text = call.signature->text;
  std::memcpy(entry.text, text.data(), std::min(text.size(), OrderEntry::kTextSize - 1));
  return entry;
}

}  // namespace

GroupStream::GroupStream(std::shared_ptr<const Group> group,
                         const std::vector<std::string>& host_ids, Context context)
    : group_(std::move(group)),
      context_(std::move(context)),
      topology_(group_->processes(), host_ids, context_.mesh->process()),
      blocks_(local().size()),
      offers_(local().size()) {}

Status GroupStream::Open(size_t slot_bytes) {
  auto block = SharedMemory::Create(SegmentExchange::BlockBytes(slots(), slot_bytes));
  SMDDP_RETURN_IF_ERROR(block.status());
  SharedMemory& mine = blocks_[topology_.my_index()];
  mine = std::move(*block);
  my_slot_bytes_ = slot_bytes;
  MeshMessage offer;
  offer.kind = MeshMessage::Kind::kBlock;
  offer.group = group_->id();
  offer.value = slot_bytes;
  for (int process : local()) {
    if (process == context_.mesh->process()) continue;
    if (const auto lost = context_.mesh->Lost(process)) {
      return Status(StatusCode::kPeerLost, Name(process) + " " + *lost);
    }
    SMDDP_RETURN_IF_ERROR(context_.mesh->Send(process, offer, mine.fd()));
  }
  if (spans_hosts() && topology_.on_rail()) {
    network_ = std::make_unique<NetworkStage>(*context_.network, topology_, group_->id(),
                                              slot_bytes);
  }
  return Status();
}

void GroupStream::Add(std::unique_ptr<Call> call) {
  if (!broken_.ok()) {
    context_.finish(std::move(call), broken_);
    return;
  }
  if (group_->my_index() == 0) unpublished_.push_back(call->tag);
  waiting_.emplace(call->tag, std::move(call));
  if (exchange_) UpdateAwaiting();
}

bool GroupStream::Progress() {
  if (!broken_.ok()) return false;
  bool any = false;
  if (Ready()) {
    if (HearFailure() || HearMail()) return true;
    for (bool moved = true; moved && broken_.ok();) {
      moved = PublishOrder();
      moved |= FollowOrder();
      moved |= broken_.ok() && pipeline_->Progress();
      moved |= FinishDone();
      any |= moved;
    }
  }
  FailIfLost();
  return any;
}

bool GroupStream::Ready() {
  return (exchange_ || MapBlocks()) && (!network_ || network_->Ready());
}

void GroupStream::Lose(int process, const std::string& why) {
  const bool here = context_.mesh->IsLocal(process);
  const bool on_our_rail =
      topology_.on_rail() && topology_.counterpart(topology_.HostOf(process)) == process;
  // Only who hears from it in this group knows whether it has left with all given; that
  // one tells us.
  if (!here && !on_our_rail) return;
  Loss& loss = losses_[process];
  // Its last word says more than that its connection ended after it.
  if (loss.why.empty()) loss.why = why;
}

// A member of this host that left after its last step has given all that step needs;
// whatever is still not done now never will be.
void GroupStream::FailIfLost() {
  if (idle() || !broken_.ok()) return;
  for (const auto& [process, loss] : losses_) {
    if (loss.why.empty()) continue;  // Has said goodbye, and is still there.
    if (loss.calls && (!pipeline_ || pipeline_->done() < *loss.calls)) continue;
    return Fail(StatusCode::kPeerLost, Name(process) + " " + loss.why, true);
  }
}

void GroupStream::Leave() {
  if (network_ && pipeline_ && broken_.ok()) {
    network_->Tell(FrameKind::kLeave, pipeline_->done(), 0, {});
  }
}

bool GroupStream::HearMail() {
  if (!network_) return false;
  for (const Mail& mail : network_->TakeMail()) {
    if (broken_.ok()) Hear(mail);
  }
  return !broken_.ok();
}

void GroupStream::Hear(const Mail& mail) {
  switch (mail.kind) {
    case FrameKind::kOrder: {
      OrderEntry entry;
      if (mail.text.size() != sizeof(entry)) break;
      std::memcpy(&entry, mail.text.data(), sizeof(entry));
      entry.text[OrderEntry::kTextSize - 1] = '\0';
      ordered_.push_back(entry);
      return;
    }
    case FrameKind::kLeave:
      losses_[mail.from].calls = mail.segment;
      return;
    case FrameKind::kFailure:
      return End(StatusCode::kAborted, Name(mail.from) + " reported: " + mail.text,
                 mail.text);
    default:
      break;
  }
  Fail(StatusCode::kInternal, "an unusable message from " + Name(mail.from), true);
}

// Maps every member's block once all offers are there; all members take the smallest.
bool GroupStream::MapBlocks() {
  const std::vector<int>& processes = local();
  size_t slot_bytes = my_slot_bytes_;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (i == topology_.my_index()) continue;
    if (!offers_[i]) offers_[i] = context_.take_offer(group_->id(), processes[i]);
    if (!offers_[i]) return false;
    slot_bytes = std::min<size_t>(slot_bytes, offers_[i]->slot_bytes);
  }
  std::vector<std::byte*> starts;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (i == topology_.my_index()) {
      starts.push_back(blocks_[i].data());
      continue;
    }
    auto block = SharedMemory::Map(std::move(offers_[i]->fd),
                                   SegmentExchange::BlockBytes(slots(), slot_bytes));
    if (!block.ok()) {
      Fail(block.status().code(), Name(processes[i]) + ": " + block.status().message(),
           false);
      return false;
    }
    blocks_[i] = std::move(*block);
    starts.push_back(blocks_[i].data());
  }
  exchange_ = std::make_unique<SegmentExchange>(
      SegmentExchange::Shape{processes.size(), slots(), slot_bytes}, topology_.my_index(),
      std::move(starts));
  SegmentPipeline::Stages stages;
  stages.host = exchange_.get();
  stages.network = network_.get();
  stages.workers = context_.workers;
  stages.ring = [this](size_t member) {
    context_.mesh->page(local()[member]).doorbell.Ring();
  };
  pipeline_ = std::make_unique<SegmentPipeline>(std::move(stages), topology_);
  UpdateAwaiting();
  return true;
}

bool GroupStream::PublishOrder() {
  bool any = false;
  while (!unpublished_.empty() && exchange_->CanPublish()) {
    const OrderEntry entry = EntryFor(*waiting_.at(unpublished_.front()));
    if (network_) {
      const std::string text(reinterpret_cast<const char*>(&entry), sizeof(entry));
      network_->Tell(FrameKind::kOrder, 0, 0, text);
    }
    exchange_->Publish(entry);
    unpublished_.pop_front();
    any = true;
  }
  while (!ordered_.empty() && exchange_->CanPublish()) {
    exchange_->Publish(ordered_.front());
    ordered_.pop_front();
    any = true;
  }
  if (any) RingAwaiting();
  return any;
}

bool GroupStream::FollowOrder() {
  bool any = false;
  while (next_entry_ < exchange_->Published()) {
    const OrderEntry& entry = exchange_->Entry(next_entry_);
    const auto found = waiting_.find(entry.tag);
    if (found == waiting_.end()) break;  // Not reached here yet.
    const Call& call = *found->second;
    if (call.signature->hash != entry.signature) {
      Fail(StatusCode::kMismatch,
           "ranks disagree about " + call.label + " at step " +
               std::to_string(call.step) + ": rank " +
               std::to_string(group_->processes()[0]) + " has " + entry.text + ", rank " +
               std::to_string(context_.mesh->process()) + " has " + call.signature->text +
               ". Every rank must reduce the same dtype and shape",
           true);
      return true;
    }
    pipeline_->Push(std::move(found->second));
    waiting_.erase(found);
    exchange_->Taken(next_entry_++);
    any = true;
  }
  if (any) UpdateAwaiting();
  return any;
}

bool GroupStream::FinishDone() {
  bool any = false;
  while (broken_.ok()) {
    std::unique_ptr<Call> call = pipeline_->PopDone();
    if (!call) break;
    if (noticed_ == call->tag) TakeNoticeDown();
    context_.finish(std::move(call), Status());
    any = true;
  }
  return any;
}

bool GroupStream::HearFailure() {
  for (size_t i = 0; i < local().size(); ++i) {
    if (i == topology_.my_index()) continue;
    const std::string why = exchange_->Failure(i);
    if (why.empty()) continue;
    End(StatusCode::kAborted, Name(local()[i]) + " reported: " + why, why);
    return true;
  }
  return false;
}

void GroupStream::UpdateAwaiting() { exchange_->SetAwaiting(!waiting_.empty()); }

void GroupStream::RingAwaiting() {
  for (size_t i = 1; i < local().size(); ++i) {
    if (exchange_->Awaiting(i)) context_.mesh->page(local()[i]).doorbell.Ring();
  }
}

const Call* GroupStream::Oldest() const {
  if (pipeline_ && !pipeline_->empty()) return &pipeline_->front();
  const Call* oldest = nullptr;
  for (const auto& [tag, call] : waiting_) {
    if (oldest == nullptr || call->deadline.at() < oldest->deadline.at()) {
      oldest = call.get();
    }
  }
  return oldest;
}

std::string GroupStream::Name(int process) const {
  return context_.mesh->IsLocal(process) ? context_.mesh->Describe(process)
                                         : context_.network->Describe(process);
}

std::optional<int> GroupStream::Missing() const {
  if (!exchange_) {
    for (size_t i = 0; i < offers_.size(); ++i) {
      if (i != topology_.my_index() && !offers_[i]) return local()[i];
    }
    return std::nullopt;
  }
  if (network_) {
    if (const auto host = network_->Missing()) return topology_.counterpart(*host);
  }
  if (!pipeline_->empty()) {
    if (const auto member = pipeline_->WaitsForMember()) return local()[*member];
    return MissingElsewhere(pipeline_->front());
  }
  // The first member has not put our collective into the order yet.
  if (topology_.my_index() != 0) return local()[0];
  if (group_->my_index() != 0) return group_->processes()[0];
  return std::nullopt;
}

// Who of the other hosts does not wait in `call` as we do.
std::optional<int> GroupStream::MissingElsewhere(const Call& call) const {
  for (size_t h = 0; network_ && h < topology_.hosts(); ++h) {
    if (h == topology_.my_host()) continue;
    const auto theirs = NoticeOf(topology_.counterpart(h));
    if (theirs.op != call.op || theirs.step != call.step) return topology_.counterpart(h);
  }
  return std::nullopt;
}

NoticeBoard::Notice GroupStream::NoticeOf(int process) const {
  if (context_.mesh->IsLocal(process)) return context_.mesh->page(process).board.Read();
  return network_ ? network_->NoticeOf(process) : NoticeBoard::Notice();
}

void GroupStream::PostNotice(const Call& call) {
  noticed_ = call.tag;
  context_.mesh->my_page().board.Post(
      {call.op, call.step, group_->id(), call.Describe()});
  if (network_) network_->Tell(FrameKind::kNotice, call.step, call.op, call.Describe());
}

void GroupStream::TakeNoticeDown() {
  noticed_ = 0;
  context_.mesh->my_page().board.Post({});
  if (network_) network_->Tell(FrameKind::kNotice, 0, 0, {});
}

std::string GroupStream::Disagreement(const Call& call, int process) const {
  const auto theirs = NoticeOf(process);
  if (theirs.op != call.op) return {};
  std::string what;
  if (theirs.step == call.step && theirs.group != group_->id()) {
    what = "the group of a collective";
  } else if (theirs.step != call.step && Missing() == process) {
    // It has not taken part in our step, yet waits in another one.
    what = "how often they reached a collective";
  } else {
    return {};
  }
  return "ranks disagree about " + what + ": " + Name(process) + " waits in " +
         theirs.text + "; rank " + std::to_string(context_.mesh->process()) +
         " waits in " + call.Describe();
}

void GroupStream::CheckDeadlines() {
  const Call* call = Oldest();
  if (call == nullptr || !broken_.ok()) return;
  const double waited = context_.timeout_seconds - call->deadline.SecondsLeft();
  if (waited < std::min(kNoticeSeconds, context_.timeout_seconds / 2)) return;
  if (noticed_ != call->tag) PostNotice(*call);
  for (int process : group_->processes()) {
    if (process == context_.mesh->process()) continue;
    const std::string why = Disagreement(*call, process);
    if (!why.empty()) return Fail(StatusCode::kMismatch, why, true);
  }
  if (!call->deadline.Passed()) return;
  std::string missing = "its peers";
  if (const auto process = Missing()) {
    const auto notice = NoticeOf(*process);
    missing = Name(*process) + ", which " +
              (notice.op == 0 ? "has not reached it and waits in no collective"
                              : "waits in " + notice.text);
  } else if (const std::string reducer = pipeline_ ? pipeline_->WaitsForNetwork() : "";
             !reducer.empty()) {
    missing = reducer;
  }
  Fail(StatusCode::kDeadline,
       "rank " + std::to_string(context_.mesh->process()) + " waited " +
           std::to_string(static_cast<int>(context_.timeout_seconds)) + " s in " +
           call->Describe() + ", for " + missing +
           ". Check that this process runs and takes the same steps; SMDDP_TIMEOUT "
           "sets the deadline",
       true);
}

void GroupStream::Fail(StatusCode code, const std::string& why, bool tell) {
  End(code, why, tell ? why : std::string());
}

void GroupStream::End(StatusCode code, const std::string& why, const std::string& told) {
  if (!broken_.ok()) return;
  broken_ = Status(code, why);
  if (!told.empty() && exchange_) {
    exchange_->SetFailure(told);
    for (int process : local()) {
      if (process == context_.mesh->process()) continue;
      context_.mesh->page(process).doorbell.Ring();
    }
  }
  if (!told.empty() && network_) network_->Tell(FrameKind::kFailure, 0, 0, told);
  // Who disagrees with us may not have looked at ours yet.
  if (noticed_ != 0 && code != StatusCode::kMismatch) TakeNoticeDown();
  // The callers' memory goes with their calls.
  if (network_) network_->Close();
  const auto fail = [&](std::unique_ptr<Call> call) {
    const std::string text = why.find(call->label) == std::string::npos
                                 ? why + " (in " + call->Describe() + ")"
                                 : why;
    context_.finish(std::move(call), Status(code, text));
  };
  while (pipeline_ && !pipeline_->empty()) fail(pipeline_->Take());
  for (auto& [tag, call] : waiting_) fail(std::move(call));
  waiting_.clear();
  unpublished_.clear();
}

}  // namespace smddp
