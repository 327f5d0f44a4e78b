// SPDX-License-Identifier: Apache-2.0
#include "gpu/host_group.h"

#include <chrono>
#include <set>
#include <utility>

#include "base/hash.h"

namespace smddp {
namespace {

// How long a call goes on without a peer that is gone: it may need nothing more from it.
constexpr double kLostSeconds = 1.0;
// How long a kernel may take to say for whom it waits.
constexpr double kAnswerSeconds = 2.0;
// Where a network is in between, it says more than we can: let it speak first.
constexpr double kNetworkSeconds = 1.0;
// Pinned memory is this part of the staging on a GPU.
constexpr size_t kRingShare = 4;

constexpr char kRemedy[] =
    ". Check that this process runs and takes the same steps; SMDDP_TIMEOUT sets the "
    "deadline";

GpuGroup::Room RoomOf(const Engine& engine, const GpuPlaces& places) {
  return {engine.settings().gpu_staging_bytes, places.here().size(), places.hosts() > 1};
}

}  // namespace

HostGroup::HostGroup(std::shared_ptr<const Group> group, Context context)
    : group_(std::move(group)),
      context_(std::move(context)),
      id_(Hash64().Add("GPUs").Add(group_->id()).value()) {}

Status HostGroup::Prepare() {
  const std::lock_guard lock(making_);
  if (!made_) {
    made_ = true;
    const Status made = Make();
    ready_.store(made.ok());
    if (!made.ok()) Fail(made, Tell::kAll);
  }
  LookAtPeers();
  return failure();
}

Status HostGroup::Make() {
  Engine& engine = *context_.engine;
  if (!group_->one_process() && engine.mesh() == nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "a collective spans processes, but smddp_jax.init() was not called");
  }
  auto places = GpuPlaces::Of(*group_, engine.host_ids());
  SMDDP_RETURN_IF_ERROR(places.status());
  places_ = std::move(*places);
  const Status made = MakeLocals(Deadline::After(engine.settings().timeout_seconds));
  return places_.hosts() == 1 ? made : MeetHosts(made);
}

Status HostGroup::MakeLocals(const Deadline& deadline) {
  Engine& engine = *context_.engine;
  const GpuGroup::Room room = RoomOf(engine, places_);
  std::vector<MemoryMember> members;
  for (uint32_t rank = 0; rank < places_.here().size(); ++rank) {
    const Member& member = places_.here()[rank];
    members.push_back({member.process, nullptr});
    if (member.process != places_.my_process) continue;
    auto gpu = context_.gpu_of(member.device);
    SMDDP_RETURN_IF_ERROR(gpu.status());
    members.back().gpu = *gpu;
    auto setup = SetupOf(**gpu, rank, room);
    SMDDP_RETURN_IF_ERROR(setup.status());
    Local local;
    local.device = member.device;
    local.rank = rank;
    local.gpu = std::make_unique<GpuGroup>(std::move(*setup));
    locals_.push_back(std::move(local));
  }
  auto mapped = TradeMemory(engine, id_, members, room.shared_bytes, deadline);
  SMDDP_RETURN_IF_ERROR(mapped.status());
  for (size_t i = 0; i < locals_.size(); ++i) locals_[i].gpu->Map((*mapped)[i]);
  return {};
}

Result<GpuGroup::Setup> HostGroup::SetupOf(device::Gpu& gpu, uint32_t rank,
                                           const GpuGroup::Room& room) {
  GpuGroup::Setup setup;
  auto words = gpu.AllocateHost(sizeof(HostWords));
  SMDDP_RETURN_IF_ERROR(words.status());
  setup.words = reinterpret_cast<HostWords*>(*words);
  setup.gpu = &gpu;
  setup.group.rank = rank;
  setup.group.ranks = static_cast<uint32_t>(places_.here().size());
  setup.group.half_bytes = room.half_bytes;
  setup.group.watch = &setup.words->watch;
  if (places_.hosts() == 1) return setup;
  auto leg = MakeLeg(gpu, rank);
  SMDDP_RETURN_IF_ERROR(leg.status());
  setup.leg = std::move(*leg);
  auto part = gpu.Allocate(room.part_bytes);
  SMDDP_RETURN_IF_ERROR(part.status());
  setup.part = *part;
  return setup;
}

Result<std::unique_ptr<NetworkLeg>> HostGroup::MakeLeg(device::Gpu& gpu, uint32_t rank) {
  NetworkLeg::Context context;
  context.engine = context_.engine;
  context.gpu = &gpu;
  context.rail = std::make_shared<const Group>(places_.Rail(rank));
  context.check = [this] {
    LookAtGpus();
    return failure();
  };
  context.fail = [this](const Status& why) { Fail(why, Tell::kAll); };
  return NetworkLeg::Make(std::move(context),
                          context_.engine->settings().gpu_staging_bytes / kRingShare);
}

// Rail by rail, in the same order everywhere.
Status HostGroup::MeetHosts(const Status& mine) {
  Status met = mine;
  for (uint32_t rank = 0; rank < places_.here().size(); ++rank) {
    if (places_.here()[rank].process != places_.my_process) continue;
    const auto rail = std::make_shared<const Group>(places_.Rail(rank));
    const Status status = NetworkLeg::Meet(*context_.engine, rail, mine.ok());
    if (met.ok()) met = status;
  }
  return met;
}

Status HostGroup::Enqueue(int64_t device, const GpuCall& call,
                          device::StreamHandle stream) {
  for (const Local& local : locals_) {
    if (local.device != device) continue;
    const Status enqueued = local.gpu->Enqueue(call, stream);
    // Where a kernel is missing, those of the peers would wait for it.
    if (!enqueued.ok()) Fail(enqueued, Tell::kAll);
    return enqueued;
  }
  return Status(StatusCode::kInvalidArgument,
                call.label + ": device " + std::to_string(device) +
                    " is not a local member of the group of " + group_->Describe());
}

Status HostGroup::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

void HostGroup::Fail(const Status& why, Tell whom) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_.ok()) return;
    failure_ = why;
  }
  failed_.store(true);
  context_.on_failure(*this, why);
  if (ready_.load()) {
    for (const Local& local : locals_) local.gpu->Abort();
  }
  if (whom == Tell::kAll) TellFailure(*context_.engine, id_, Peers(), why.message());
  if (whom == Tell::kNobody) return;
  // What is under way to other hosts comes back at once, here and there.
  for (const Local& local : locals_) {
    if (local.gpu->leg() == nullptr) continue;
    context_.engine->FailGroup(local.gpu->leg()->rail(), why.message());
  }
}

uint64_t HostGroup::in_flight() const {
  uint64_t calls = 0;
  if (!ready_.load()) return calls;
  for (const Local& local : locals_) calls += local.gpu->in_flight();
  return calls;
}

uint64_t HostGroup::staging_bytes() const {
  if (!ready_.load()) return 0;
  return locals_.size() * RoomOf(*context_.engine, places_).bytes();
}

void HostGroup::Look(Deadline::Clock::time_point now) {
  if (!ready_.load() || failed_.load() || LookAtGpus() || HearPeers()) return;
  for (Local& local : locals_) {
    if (!failed_.load()) LookAtTime(local, now);
  }
}

bool HostGroup::LookAtGpus() {
  for (const Local& local : locals_) {
    const auto gave_up = local.gpu->gave_up();
    if (gave_up) Fail(WhyGaveUp(local, *gave_up), Tell::kAll);
  }
  return failed_.load();
}

bool HostGroup::HearPeers() {
  if (const auto told = context_.engine->device_mail().FailureOf(id_)) {
    Fail(Status(StatusCode::kAborted, NameOf(told->process) + " reported: " + told->why),
         Tell::kOtherHosts);
  }
  return failed_.load();
}

// Whether all are there, before something that needs them.
void HostGroup::LookAtPeers() {
  const uint64_t news = context_.engine->device_mail().news();
  if (failed_.load() || news_seen_.exchange(news) == news || HearPeers()) return;
  const std::string lost = Lost();
  if (!lost.empty()) Fail(Status(StatusCode::kPeerLost, lost), Tell::kAll);
}

void HostGroup::LookAtTime(Local& local, Deadline::Clock::time_point now) {
  const GpuGroup::Progress progress = local.gpu->progress();
  if (!progress.waits() || progress != local.seen) {
    local.seen = progress;
    local.since = now;
    return;
  }
  const double waited = std::chrono::duration<double>(now - local.since).count();
  const std::string lost = waited < kLostSeconds ? "" : Lost();
  if (!lost.empty()) {
    const std::string text = lost + " (in " + local.gpu->DescribeStarted() + ")";
    return Fail(Status(StatusCode::kPeerLost, text), Tell::kAll);
  }
  const double slack = places_.hosts() > 1 ? kNetworkSeconds : 0;
  const double over = waited - context_.engine->settings().timeout_seconds - slack;
  if (over < 0) return;
  // The kernel says for whom it waits, if it is one that waits.
  local.gpu->Abort();
  if (over < kAnswerSeconds) return;
  Fail(Status(StatusCode::kDeadline,
              WaitedIn(local.gpu->DescribeStarted()) + ", for its GPU or its network"),
       Tell::kAll);
}

std::string HostGroup::WaitedIn(const std::string& call) const {
  return "rank " + std::to_string(places_.my_process) + " waited " +
         std::to_string(static_cast<int>(context_.engine->settings().timeout_seconds)) +
         " s in " + call;
}

Status HostGroup::WhyGaveUp(const Local& local, const device::GaveUp& gave_up) const {
  const std::string call = local.gpu->DescribeCall(gave_up.call);
  const std::string who = NameOf(places_.here()[gave_up.rank]);
  if (gave_up.disagrees) {
    return Status(StatusCode::kMismatch,
                  "ranks disagree about a collective: rank " +
                      std::to_string(places_.my_process) + " is in " + call + ", and " +
                      who +
                      " in another one. Every rank must run the same collectives in the "
                      "same order, with the same dtype and shape");
  }
  return Status(StatusCode::kDeadline,
                WaitedIn(call) + ", for " + who + ", which has not reached it" + kRemedy);
}

// Who of the host's processes is gone, in words; empty if nobody is.
std::string HostGroup::Lost() const {
  for (const int process : Peers()) {
    if (process == places_.my_process) continue;
    if (const auto why = context_.engine->mesh()->Lost(process)) {
      return NameOf(process) + " " + *why;
    }
  }
  return {};
}

std::string HostGroup::NameOf(int process) const {
  LocalMesh* const mesh = context_.engine->mesh();
  return mesh != nullptr ? mesh->Describe(process) : "rank " + std::to_string(process);
}

std::string HostGroup::NameOf(const Member& member) const {
  return "device " + std::to_string(member.device) + " of " + NameOf(member.process);
}

std::vector<int> HostGroup::Peers() const {
  std::set<int> processes;
  if (!places_.by_host.empty()) {
    for (const Member& member : places_.here()) processes.insert(member.process);
  }
  return {processes.begin(), processes.end()};
}

}  // namespace smddp
