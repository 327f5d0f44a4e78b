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

GroupStream::GroupStream(std::shared_ptr<const Group> group, Context context)
    : group_(std::move(group)),
      context_(std::move(context)),
      blocks_(group_->processes().size()),
      offers_(group_->processes().size()) {}

Status GroupStream::Open(size_t slot_bytes) {
  auto block = SharedMemory::Create(SegmentExchange::BlockBytes(kSlots, slot_bytes));
  SMDDP_RETURN_IF_ERROR(block.status());
  SharedMemory& mine = blocks_[group_->my_index()];
  mine = std::move(*block);
  my_slot_bytes_ = slot_bytes;
  MeshMessage offer;
  offer.kind = MeshMessage::Kind::kBlock;
  offer.group = group_->id();
  offer.value = slot_bytes;
  for (int process : group_->processes()) {
    if (process == context_.mesh->process()) continue;
    if (const auto lost = context_.mesh->Lost(process)) {
      return Status(StatusCode::kPeerLost,
                    context_.mesh->Describe(process) + " " + *lost);
    }
    SMDDP_RETURN_IF_ERROR(context_.mesh->Send(process, offer, mine.fd()));
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
  if (exchange_ || MapBlocks()) {
    if (HearFailure()) return true;
    for (bool moved = true; moved && broken_.ok();) {
      moved = PublishOrder();
      moved |= FollowOrder();
      moved |= broken_.ok() && running_->Progress();
      moved |= FinishDone();
      any |= moved;
    }
  }
  // A member that left after its last step has given all that step needs; whatever is
  // still not done now never will be.
  if (!lost_.empty() && !idle()) Fail(StatusCode::kPeerLost, lost_, true);
  return any;
}

// Maps every member's block once all offers are there; all members take the smallest.
bool GroupStream::MapBlocks() {
  const std::vector<int>& processes = group_->processes();
  size_t slot_bytes = my_slot_bytes_;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (i == group_->my_index()) continue;
    if (!offers_[i]) offers_[i] = context_.take_offer(group_->id(), processes[i]);
    if (!offers_[i]) return false;
    slot_bytes = std::min<size_t>(slot_bytes, offers_[i]->slot_bytes);
  }
  std::vector<std::byte*> starts;
  for (size_t i = 0; i < processes.size(); ++i) {
    if (i == group_->my_index()) {
      starts.push_back(blocks_[i].data());
      continue;
    }
    auto block = SharedMemory::Map(std::move(offers_[i]->fd),
                                   SegmentExchange::BlockBytes(kSlots, slot_bytes));
    if (!block.ok()) {
      Fail(block.status().code(), Name(i) + ": " + block.status().message(), false);
      return false;
    }
    blocks_[i] = std::move(*block);
    starts.push_back(blocks_[i].data());
  }
  exchange_ = std::make_unique<SegmentExchange>(
      SegmentExchange::Shape{processes.size(), kSlots, slot_bytes}, group_->my_index(),
      std::move(starts));
  running_ = std::make_unique<HostAllReduce>(
      *exchange_, *context_.workers, [this](size_t member) {
        context_.mesh->page(group_->processes()[member]).doorbell.Ring();
      });
  UpdateAwaiting();
  return true;
}

bool GroupStream::PublishOrder() {
  bool any = false;
  while (!unpublished_.empty() && exchange_->CanPublish()) {
    exchange_->Publish(EntryFor(*waiting_.at(unpublished_.front())));
    unpublished_.pop_front();
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
    running_->Push(std::move(found->second));
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
    std::unique_ptr<Call> call = running_->PopDone();
    if (!call) break;
    if (noticed_ == call->tag) TakeNoticeDown();
    context_.finish(std::move(call), Status());
    any = true;
  }
  return any;
}

bool GroupStream::HearFailure() {
  for (size_t i = 0; i < group_->processes().size(); ++i) {
    if (i == group_->my_index()) continue;
    const std::string why = exchange_->Failure(i);
    if (why.empty()) continue;
    Fail(StatusCode::kAborted, Name(i) + " reported: " + why, false);
    return true;
  }
  return false;
}

void GroupStream::UpdateAwaiting() { exchange_->SetAwaiting(!waiting_.empty()); }

void GroupStream::RingAwaiting() {
  for (size_t i = 1; i < group_->processes().size(); ++i) {
    if (!exchange_->Awaiting(i)) continue;
    context_.mesh->page(group_->processes()[i]).doorbell.Ring();
  }
}

const Call* GroupStream::Oldest() const {
  if (running_ && !running_->empty()) return &running_->front();
  const Call* oldest = nullptr;
  for (const auto& [tag, call] : waiting_) {
    if (oldest == nullptr || call->deadline.at() < oldest->deadline.at()) {
      oldest = call.get();
    }
  }
  return oldest;
}

std::string GroupStream::Name(size_t member) const {
  return context_.mesh->Describe(group_->processes()[member]);
}

std::optional<size_t> GroupStream::Missing() const {
  if (!exchange_) {
    for (size_t i = 0; i < offers_.size(); ++i) {
      if (i != group_->my_index() && !offers_[i]) return i;
    }
    return std::nullopt;
  }
  if (!running_->empty()) return running_->WaitsFor();
  // The leader has not put our collective into the order yet.
  if (group_->my_index() != 0) return 0;
  return std::nullopt;
}

NoticeBoard::Notice GroupStream::NoticeOf(size_t member) const {
  return context_.mesh->page(group_->processes()[member]).board.Read();
}

void GroupStream::PostNotice(const Call& call) {
  noticed_ = call.tag;
  context_.mesh->my_page().board.Post(
      {call.op, call.step, group_->id(), call.Describe()});
}

void GroupStream::TakeNoticeDown() {
  noticed_ = 0;
  context_.mesh->my_page().board.Post({});
}

std::string GroupStream::Disagreement(const Call& call, size_t member) const {
  const auto theirs = NoticeOf(member);
  if (theirs.op != call.op) return {};
  std::string what;
  if (theirs.step == call.step && theirs.group != group_->id()) {
    what = "the group of a collective";
  } else if (theirs.step != call.step && Missing() == member) {
    // It has not taken part in our step, yet waits in another one.
    what = "how often they reached a collective";
  } else {
    return {};
  }
  return "ranks disagree about " + what + ": " + Name(member) + " waits in " +
         theirs.text + "; rank " + std::to_string(context_.mesh->process()) +
         " waits in " + call.Describe();
}

void GroupStream::CheckDeadlines() {
  const Call* call = Oldest();
  if (call == nullptr || !broken_.ok()) return;
  const double waited = context_.timeout_seconds - call->deadline.SecondsLeft();
  if (waited < std::min(kNoticeSeconds, context_.timeout_seconds / 2)) return;
  if (noticed_ != call->tag) PostNotice(*call);
  for (size_t i = 0; i < group_->processes().size(); ++i) {
    if (i == group_->my_index()) continue;
    const std::string why = Disagreement(*call, i);
    if (!why.empty()) return Fail(StatusCode::kMismatch, why, true);
  }
  if (!call->deadline.Passed()) return;
  std::string missing = "its peers";
  if (const auto member = Missing()) {
    const auto notice = NoticeOf(*member);
    missing = Name(*member) + ", which " +
              (notice.op == 0 ? "has not reached it and waits in no collective"
                              : "waits in " + notice.text);
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
  if (!broken_.ok()) return;
  broken_ = Status(code, why);
  if (tell && exchange_) {
    exchange_->SetFailure(why);
    for (size_t i = 0; i < group_->processes().size(); ++i) {
      if (i == group_->my_index()) continue;
      context_.mesh->page(group_->processes()[i]).doorbell.Ring();
    }
  }
  if (noticed_ != 0) TakeNoticeDown();
  const auto fail = [&](std::unique_ptr<Call> call) {
    const std::string text = why.find(call->label) == std::string::npos
                                 ? why + " (in " + call->Describe() + ")"
                                 : why;
    context_.finish(std::move(call), Status(code, text));
  };
  while (running_ && !running_->empty()) fail(running_->Take());
  for (auto& [tag, call] : waiting_) fail(std::move(call));
  waiting_.clear();
  unpublished_.clear();
}

}  // namespace smddp
