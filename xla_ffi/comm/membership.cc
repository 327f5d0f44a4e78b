// SPDX-License-Identifier: Apache-2.0
#include "comm/membership.h"

#include <algorithm>
#include <utility>

namespace smddp {
namespace {

FrameHeader Header(FrameKind kind, uint32_t epoch, uint64_t segment, uint64_t value) {
  FrameHeader header;
  header.kind = kind;
  header.epoch = epoch;
  header.segment = segment;
  header.value = value;
  return header;
}

}  // namespace

Membership::Membership(size_t hosts, size_t me, size_t reducers, Actions actions)
    : hosts_(hosts),
      me_(me),
      reducers_(reducers),
      actions_(std::move(actions)),
      set_(reducers, 1),
      connected_(me == 0 ? hosts : 0, Set(reducers, 1)) {}

void Membership::Begin() {
  begun_ = true;
  if (leads()) Consider();
}

void Membership::Lost(size_t reducer) {
  if (leads()) return Note(me_, reducer, false);
  actions_.send(0, Header(FrameKind::kSuspect, epoch_, 0, reducer), {});
}

void Membership::Connected(size_t reducer) {
  if (leads()) return Note(me_, reducer, true);
  actions_.send(0, Header(FrameKind::kReady, epoch_, 0, reducer), {});
}

Status Membership::Handle(size_t host, const FrameHeader& header,
                          std::span<const std::byte> payload) {
  const bool to_leader = header.kind == FrameKind::kSuspect ||
                         header.kind == FrameKind::kReady ||
                         header.kind == FrameKind::kPrepared;
  if (to_leader != leads() || host >= hosts_ || (!leads() && host != 0)) {
    return Status(StatusCode::kInvalidArgument,
                  "a membership frame that is not for this host");
  }
  switch (header.kind) {
    case FrameKind::kSuspect:
    case FrameKind::kReady:
      if (header.value >= reducers_) break;
      Note(host, header.value, header.kind == FrameKind::kReady);
      return Status();
    case FrameKind::kPrepared:
      if (header.epoch == next_.epoch) Answer(host, header.segment);
      return Status();
    case FrameKind::kPrepare:
      if (header.epoch <= epoch_) break;
      Prepare(header.epoch);
      return Status();
    case FrameKind::kCommit: {
      if (header.epoch <= epoch_ || payload.size() != reducers_) break;
      Commit commit{header.epoch, header.segment, Set(reducers_)};
      std::transform(payload.begin(), payload.end(), commit.set.begin(),
                     [](std::byte used) { return static_cast<uint8_t>(used); });
      Apply(commit);
      return Status();
    }
    default:
      break;
  }
  return Status(StatusCode::kInvalidArgument, "a malformed membership frame");
}

void Membership::Note(size_t host, size_t reducer, bool connected) {
  connected_[host][reducer] = connected ? 1 : 0;
  if (!connected && set_[reducer] != 0) stale_ = true;
  Consider();
}

// Leader: starts a change if one is due and none is under way.
void Membership::Consider() {
  if (!begun_ || !answers_.empty()) return;
  Set wanted(reducers_, 1);
  for (const Set& connected : connected_) {
    for (size_t r = 0; r < reducers_; ++r) wanted[r] &= connected[r];
  }
  if (wanted == set_ && !stale_) return;
  stale_ = false;
  next_ = Commit{epoch_ + 1, 0, std::move(wanted)};
  answers_.assign(hosts_, std::nullopt);
  for (size_t host = 0; host < hosts_; ++host) {
    if (host == me_) continue;
    actions_.send(host, Header(FrameKind::kPrepare, next_.epoch, 0, 0), {});
  }
  Prepare(next_.epoch);
}

void Membership::Prepare(uint32_t epoch) {
  frozen_ = true;
  const uint64_t completed = actions_.prepare();
  if (leads()) return Answer(me_, completed);
  actions_.send(0, Header(FrameKind::kPrepared, epoch, completed, 0), {});
}

// Leader: one more host stands still.
void Membership::Answer(size_t host, uint64_t completed) {
  if (answers_.empty()) return;
  answers_[host] = completed;
  next_.base = completed;
  for (const auto& answer : answers_) {
    if (!answer) return;
    next_.base = std::min(next_.base, *answer);
  }
  answers_.clear();
  const Commit commit = next_;
  for (size_t other = 0; other < hosts_; ++other) {
    if (other == me_) continue;
    actions_.send(other, Header(FrameKind::kCommit, commit.epoch, commit.base, 0),
                  commit.set);
  }
  Apply(commit);
  Consider();  // Something may have changed meanwhile.
}

void Membership::Apply(const Commit& commit) {
  epoch_ = commit.epoch;
  set_ = commit.set;
  frozen_ = false;
  actions_.commit(commit);
}

}  // namespace smddp
