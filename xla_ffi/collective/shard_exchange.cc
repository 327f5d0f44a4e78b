// SPDX-License-Identifier: Apache-2.0
#include "collective/shard_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace smddp {
namespace {

// Shards start on whole cache lines for every element size.
constexpr size_t kAlignElements = 64;
// Up to here one reducer for all costs less than waking all of them.
constexpr size_t kWholeBytes = size_t{8} << 10;

}  // namespace

ShardExchange::ShardExchange(Shape shape, Transport& transport, Reducer& reducer,
                             std::function<void(const Status&)> fail)
    : shape_(std::move(shape)),
      transport_(transport),
      reducer_(reducer),
      fail_(std::move(fail)),
      membership_(shape_.hosts(), shape_.me, shape_.dedicated(),
                  {[this](size_t host, const FrameHeader& header,
                          std::span<const uint8_t> payload) {
                     FrameHeader sent = header;
                     sent.stream = shape_.stream;
                     sent.payload = static_cast<uint32_t>(payload.size());
                     transport_.SendCopy(shape_.peers[host], sent,
                                         std::as_bytes(payload));
                   },
                   [this] { return completed(); },
                   [this](const Membership::Commit& commit) { Apply(commit); }}),
      shares_(BalancedShares(shape_.worker_nics, shape_.reducer_nics)),
      records_(2 * shape_.window),
      slots_(2 * shape_.window) {}

std::byte* ShardExchange::Slot(uint64_t index) {
  auto& slot = slots_[index % slots_.size()];
  if (!slot) slot = std::make_unique_for_overwrite<std::byte[]>(shape_.segment_bytes);
  return slot.get();
}

int ShardExchange::PeerOf(size_t reducer) const {
  if (reducer < shape_.dedicated()) {
    return shape_.first_reducer + static_cast<int>(reducer);
  }
  return shape_.peers[reducer - shape_.dedicated()];
}

void ShardExchange::Begin() {
  open_ = true;
  OpenStreams(0);
  for (size_t r = 0; r < shape_.dedicated(); ++r) {
    if (!transport_.HasPeer(PeerOf(r))) membership_.Lost(r);
  }
  membership_.Begin();
}

// Tells every reducer that has a share how this host will use the stream.
void ShardExchange::OpenStreams(uint64_t first) {
  FrameHeader open;
  open.kind = FrameKind::kOpen;
  open.stream = shape_.stream;
  open.epoch = membership_.epoch();
  open.payload = kShapeBytes;
  for (size_t r = 0; r < shares_.fraction.size(); ++r) {
    // Every host's own reducer makes what its host alone needs or adds.
    const bool dedicated = r < shape_.dedicated();
    if (dedicated && shares_.fraction[r] <= 0) continue;
    StreamShape use;
    use.hosts = static_cast<uint32_t>(shape_.hosts());
    use.host = static_cast<uint32_t>(shape_.me);
    use.reducer = static_cast<uint32_t>(r);
    // After a change of reducers a host pushes two windows' worth again.
    const size_t slots = shape_.dedicated() > 0 ? records_.size() : shape_.window;
    use.window = static_cast<uint32_t>(slots);
    // A shard is within one unit of its share; units are at most 16 bytes an element.
    const auto share = static_cast<size_t>(shares_.fraction[r] *
                                           static_cast<double>(shape_.segment_bytes));
    const size_t owned = dedicated ? 0 : shape_.segment_bytes / shape_.hosts();
    use.slot_bytes = std::max({kWholeBytes, owned, share + 2 * kAlignElements * 16});
    use.first = first;
    if (r == OwnReducer()) {
      const Status opened = reducer_.OpenLocal(open, use);
      if (!opened.ok()) fail_(opened);
      continue;
    }
    std::byte bytes[kShapeBytes];
    Encode(use, bytes);
    transport_.SendCopy(PeerOf(r), open, bytes);
  }
}

void ShardExchange::Push(Segment segment) {
  Record& record = RecordOf(next_);
  record.segment = std::move(segment);
  record.complete = false;
  record.pushed = false;
  const uint64_t index = next_++;
  // Else the commit pushes it.
  if (open_ && !membership_.frozen()) PushShards(index, record);
}

std::vector<Shard> ShardExchange::ShardsOfSegment(uint64_t index,
                                                  const Segment& segment) const {
  if (segment.owner) {
    return {{shape_.dedicated() + *segment.owner, {0, segment.elements}}};
  }
  const size_t element = std::max(SizeOf(segment.in), SizeOf(segment.out));
  return ShardsOf(shares_, index, segment.elements, kAlignElements,
                  kWholeBytes / element);
}

void ShardExchange::PushShards(uint64_t index, Record& record) {
  const Segment& segment = record.segment;
  const size_t in_bytes = SizeOf(segment.in);
  record.shards = ShardsOfSegment(index, segment);
  record.there.assign(record.shards.size(), false);
  record.missing = record.complete ? 0 : record.shards.size();
  record.pushed = true;
  FrameHeader push;
  push.kind = FrameKind::kPush;
  push.op = segment.op;
  push.in = segment.in;
  push.out = segment.out;
  push.stream = shape_.stream;
  push.epoch = membership_.epoch();
  push.from = static_cast<uint32_t>(shape_.me);
  push.segment = index;
  push.value = (segment.adds ? 0 : kPushEmpty) | (segment.needs ? 0 : kPushNoResult);
  const size_t count = record.shards.size();
  // Each host starts with another reducer, lest all send to one at once.
  for (size_t n = 0; n < count; ++n) {
    const Shard& shard = record.shards[(n + shape_.me + index) % count];
    push.payload = segment.adds ? static_cast<uint32_t>(shard.range.size * in_bytes) : 0;
    const std::span data(segment.data + shard.range.offset * in_bytes, push.payload);
    if (shard.reducer != OwnReducer()) {
      transport_.Send(PeerOf(shard.reducer), push, data);
      continue;
    }
    std::byte* const result =
        segment.needs && !record.complete
            ? segment.result + shard.range.offset * SizeOf(segment.out)
            : nullptr;
    const Status given = reducer_.Contribute(push, data, result);
    if (!given.ok()) fail_(given);
  }
}

void ShardExchange::Apply(const Membership::Commit& commit) {
  if (closed_) return;
  // Other hosts may be in the new epoch already, and push to our reducer.
  transport_.Forget(shape_.stream, commit.epoch);
  reducer_.CloseLocal(shape_.stream);
  std::vector<double> nics;
  std::vector<size_t> used;
  for (size_t r = 0; r < commit.set.size(); ++r) {
    if (commit.set[r] == 0) continue;
    nics.push_back(shape_.reducer_nics[r]);
    used.push_back(r);
  }
  // Numbers stay those of the whole list: an unused reducer has a share of nothing.
  const Shares among = BalancedShares(shape_.worker_nics, nics);
  shares_.seconds_per_byte = among.seconds_per_byte;
  shares_.fraction.assign(shape_.dedicated() + shape_.hosts(), 0);
  for (size_t n = 0; n < used.size(); ++n) shares_.fraction[used[n]] = among.fraction[n];
  std::copy(among.fraction.begin() + static_cast<ptrdiff_t>(used.size()),
            among.fraction.end(),
            shares_.fraction.begin() + static_cast<ptrdiff_t>(shape_.dedicated()));
  if (!open_) return;  // Begin() opens.
  OpenStreams(commit.base);
  for (uint64_t index = commit.base; index < next_; ++index) {
    Record& record = RecordOf(index);
    // Its call may end, and its memory go, before the others have what they lack.
    if (record.complete) KeepOne(index);
    PushShards(index, record);
  }
}

void ShardExchange::Keep(uint64_t first, uint64_t last) {
  if (shape_.dedicated() == 0) return;  // Nothing is ever pushed again.
  const uint64_t kept = next_ > records_.size() ? next_ - records_.size() : 0;
  for (uint64_t index = std::max(first, kept); index < last; ++index) KeepOne(index);
}

void ShardExchange::KeepOne(uint64_t index) {
  Segment& segment = RecordOf(index).segment;
  std::byte* const slot = Slot(index);
  if (segment.data == slot) return;
  std::memcpy(slot, segment.data, segment.elements * SizeOf(segment.in));
  segment.data = slot;
}

void ShardExchange::Close() {
  closed_ = true;
  // With all sums here nothing of ours is on its way; sums for the others may be.
  if (completed() == next_) return;
  transport_.Forget(shape_.stream);
  reducer_.CloseLocal(shape_.stream);
}

void ShardExchange::ReducerLost(size_t reducer) {
  if (open_ && !closed_) membership_.Lost(reducer);
}

void ShardExchange::ReducerConnected(size_t reducer) {
  if (open_ && !closed_) membership_.Connected(reducer);
}

Result<ShardExchange::Record*> ShardExchange::Find(const FrameHeader& result,
                                                   size_t* shard) {
  Record* const nobody = nullptr;
  if (closed_ || result.epoch < membership_.epoch()) return nobody;
  const auto refuse = [&](const std::string& what) {
    return Status(StatusCode::kInvalidArgument,
                  what + " (segment " + std::to_string(result.segment) + ", reducer " +
                      std::to_string(result.from) + ")");
  };
  if (result.epoch > membership_.epoch()) return refuse("a sum of an epoch to come");
  if (result.segment >= next_) return refuse("a sum that nobody asked for");
  if (result.segment + records_.size() < next_) return nobody;
  Record& record = RecordOf(result.segment);
  if (record.complete) return nobody;
  for (size_t n = 0; n < record.shards.size(); ++n) {
    if (record.shards[n].reducer != result.from) continue;
    if (record.there[n]) return refuse("a second sum of one shard");
    *shard = n;
    return &record;
  }
  return refuse("a sum from a reducer that has no share in it");
}

Result<std::byte*> ShardExchange::Accept(const FrameHeader& result) {
  size_t shard = 0;
  auto record = Find(result, &shard);
  SMDDP_RETURN_IF_ERROR(record.status());
  if (*record == nullptr) return static_cast<std::byte*>(nullptr);
  const Segment& segment = (*record)->segment;
  const Range& range = (*record)->shards[shard].range;
  const size_t wanted = segment.needs ? range.size * SizeOf(segment.out) : 0;
  if (result.in != segment.out || result.payload != wanted) {
    return Status(StatusCode::kInvalidArgument,
                  "a sum of " + std::to_string(result.payload) + " bytes of " +
                      Name(result.in) + " where the plan has " + std::to_string(wanted) +
                      " of " + Name(segment.out));
  }
  return segment.result + range.offset * SizeOf(segment.out);
}

Status ShardExchange::Received(int peer, const FrameHeader& header,
                               std::span<const std::byte> control) {
  if (closed_) return Status();
  if (header.kind != FrameKind::kResult) {
    const auto host = std::find(shape_.peers.begin(), shape_.peers.end(), peer);
    return membership_.Handle(static_cast<size_t>(host - shape_.peers.begin()), header,
                              control);
  }
  size_t shard = 0;
  auto record = Find(header, &shard);
  SMDDP_RETURN_IF_ERROR(record.status());
  if (*record != nullptr) ShardDone(**record, shard);
  return Status();
}

void ShardExchange::LocalDone(uint32_t epoch, uint64_t segment) {
  if (closed_ || epoch != membership_.epoch() || segment >= next_) return;
  Record& record = RecordOf(segment);
  for (size_t n = 0; n < record.shards.size(); ++n) {
    if (record.shards[n].reducer != OwnReducer() || record.there[n]) continue;
    if (!record.complete) ShardDone(record, n);
    return;
  }
}

void ShardExchange::ShardDone(Record& record, size_t shard) {
  record.there[shard] = true;
  if (--record.missing > 0) return;
  record.complete = true;
  uint64_t completed = completed_.load(std::memory_order_relaxed);
  while (completed < next_ && RecordOf(completed).complete) ++completed;
  completed_.store(completed, std::memory_order_release);
}

std::string ShardExchange::WaitsFor() const {
  if (completed() >= next_) return {};
  const Record& record = RecordOf(completed());
  for (size_t n = 0; n < record.shards.size(); ++n) {
    if (record.there[n]) continue;
    const size_t reducer = record.shards[n].reducer;
    if (reducer < shape_.dedicated()) return "reducer " + std::to_string(reducer);
    return "the reducer of rank " +
           std::to_string(shape_.peers[reducer - shape_.dedicated()]);
  }
  return {};
}

}  // namespace smddp
