// SPDX-License-Identifier: Apache-2.0
#include "collective/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "collective/local_all_reduce.h"

namespace smddp {
namespace {

// Up to here a collective is done sooner than a sleeping thread wakes up, so the
// thread that brought the last part does the work. Bytes read and written.
constexpr size_t kInlineBytes = size_t{256} << 10;
// How long the progress thread polls before it sleeps: about what waking it costs.
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr double kBusyTickSeconds = 0.05;
constexpr double kIdleTickSeconds = 1.0;
// Every one of these may block in one of XLA's own collectives.
constexpr size_t kMaxCompletionThreads = 1024;
constexpr size_t kPage = 4096;

size_t Cores() { return std::max(1u, std::thread::hardware_concurrency()); }

size_t Traffic(const Call& call) {
  return call.signature->bytes() * call.local.size() * 2;
}

}  // namespace

Engine::Engine(const Settings& settings)
    : settings_(settings),
      completions_(Cores(), kMaxCompletionThreads),
      workers_(std::make_unique<Workers>(
          settings.threads > 0 ? static_cast<size_t>(settings.threads) : Cores())),
      rendezvous_(settings.timeout_seconds) {
  progress_thread_ = Thread(
      "smddp-progress", [this] { ProgressLoop(); },
      [this](const Status& status) { Abort(status.message()); });
}

Engine::~Engine() {
  Abort("the engine is shutting down");
  stopping_.store(true);
  WakeProgress();
  progress_thread_.Join();
}

Status Engine::Connect(int process, int processes, KeyValueStore& store) {
  if (mesh_ || !disconnected_.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "this process has joined a job before; start a new process");
  }
  LocalMesh::Events events;
  events.on_block = [this](const MeshMessage& message, UniqueFd fd) {
    {
      const std::lock_guard lock(inbox_mutex_);
      offers_.insert_or_assign(std::pair{message.group, int{message.process}},
                               BlockOffer{message.value, std::move(fd)});
    }
    WakeProgress();
  };
  events.on_lost = [this](int lost, std::string why) {
    {
      const std::lock_guard lock(inbox_mutex_);
      losses_.emplace_back(lost, std::move(why));
    }
    WakeProgress();
  };
  auto mesh = LocalMesh::Connect(process, processes, settings_, store,
                                 Deadline::After(settings_.timeout_seconds),
                                 std::move(events));
  SMDDP_RETURN_IF_ERROR(mesh.status());
  {
    const std::lock_guard lock(progress_mutex_);
    mesh_ = std::move(*mesh);
    if (settings_.threads <= 0) {
      workers_ = std::make_unique<Workers>(
          std::max<size_t>(1, Cores() / mesh_->local_processes().size()));
    }
    doorbell_.store(&mesh_->my_page().doorbell);
  }
  own_doorbell_.Ring();
  return Status();
}

void Engine::Disconnect(const std::string& reason) {
  const std::lock_guard lock(progress_mutex_);
  if (!mesh_ || !disconnected_.empty()) return;
  disconnected_ = "rank " + std::to_string(mesh_->process()) + " left the job: " + reason;
  for (auto& [id, stream] : streams_) {
    stream->Fail(StatusCode::kAborted, disconnected_, /*tell=*/false);
  }
  mesh_->SayGoodbye(reason);
}

void Engine::Abort(const std::string& reason) {
  FailIncomplete(/*all=*/true, StatusCode::kAborted, reason);
  {
    const std::lock_guard lock(inbox_mutex_);
    abort_reason_ = reason;
  }
  WakeProgress();
}

bool Engine::Drain(double seconds) {
  std::unique_lock lock(in_flight_mutex_);
  return none_in_flight_.wait_for(lock, std::chrono::duration<double>(seconds),
                                  [this] { return in_flight_ == 0; });
}

Engine::Stats Engine::stats() const {
  const std::lock_guard lock(in_flight_mutex_);
  return {calls_, bytes_, host_calls_, failed_, in_flight_, staging_bytes_};
}

void Engine::AfterForkInChild() {
  forked_.store(true);
  if (mesh_) mesh_->CloseInForkedChild();
}

void Engine::Submit(OpInstance& op, int64_t run_id, int64_t device,
                    const std::shared_ptr<const Group>& group,
                    const std::shared_ptr<const Signature>& signature,
                    Participant participant) {
  if (forked_.load()) {
    participant.done(Status(StatusCode::kAborted,
                            op.label + ": a forked child cannot take part in collectives; "
                                       "start workers with the spawn method"));
    return;
  }
  const auto done = participant.done;
  auto joined =
      rendezvous_.Join(op, run_id, device, group, signature, std::move(participant));
  if (!joined.ok()) {
    done(joined.status());
    return;
  }
  std::unique_ptr<Call> call = std::move(*joined);
  if (!call) return;
  calls_.fetch_add(1, std::memory_order_relaxed);
  bytes_.fetch_add(signature->bytes(), std::memory_order_relaxed);
  CallBegins();
  if (group->one_process()) {
    RunLocal(std::move(call));
  } else {
    host_calls_.fetch_add(1, std::memory_order_relaxed);
    RunHost(std::move(call));
  }
}

void Engine::RunLocal(std::unique_ptr<Call> call) {
  if (Traffic(*call) <= kInlineBytes) {
    AllReduceLocal(*call, {0, call->signature->space.total()});
    Finish(std::move(call), Status(), /*on_submitter=*/true);
    return;
  }
  const size_t tasks = LocalTasks(*call, workers_->size());
  // std::function wants copyable captures.
  auto owner = std::make_shared<std::unique_ptr<Call>>(std::move(call));
  workers_->Start(
      tasks,
      [owner, tasks](size_t index) {
        AllReduceLocal(**owner, LocalTask(**owner, tasks, index));
      },
      [this, owner] { Finish(std::move(*owner), Status(), /*on_submitter=*/false); });
}

void Engine::RunHost(std::unique_ptr<Call> call) {
  const bool small = Traffic(*call) <= kInlineBytes;
  const Call* submitting = call.get();
  {
    const std::lock_guard lock(inbox_mutex_);
    inbox_.push_back(std::move(call));
  }
  if (small) {
    const std::unique_lock lock(progress_mutex_, std::try_to_lock);
    if (lock.owns_lock()) {
      submitting_ = submitting;
      Progress();
      submitting_ = nullptr;
      return;
    }
  }
  WakeProgress();
}

void Engine::Finish(std::unique_ptr<Call> call, const Status& status,
                    bool on_submitter) {
  if (!status.ok()) failed_.fetch_add(1, std::memory_order_relaxed);
  // The call has ended when the last participant has been told.
  const std::shared_ptr<Call> shared(call.release(), [this](Call* ended) {
    delete ended;
    CallEnds();
  });
  for (size_t i = 0; i < shared->local.size(); ++i) {
    if (!shared->local[i].done) continue;  // Never came.
    if (on_submitter && i == shared->last) continue;
    completions_.Post([shared, i, status] { shared->local[i].done(status); });
  }
  // XLA waits for nothing yet on this thread, so no continuation runs here.
  if (on_submitter) shared->local[shared->last].done(status);
}

void Engine::CallBegins() {
  const std::lock_guard lock(in_flight_mutex_);
  ++in_flight_;
}

void Engine::CallEnds() {
  const std::lock_guard lock(in_flight_mutex_);
  if (--in_flight_ == 0) none_in_flight_.notify_all();
}

void Engine::FailIncomplete(bool all, StatusCode code, const std::string& why) {
  for (std::unique_ptr<Call>& call : rendezvous_.TakeOverdue(all)) {
    std::string missing;
    for (const Member& member : call->group->members()) {
      const auto index = call->group->LocalIndex(member.device);
      if (index && !call->local[*index].done) {
        missing += (missing.empty() ? "" : ", ") + std::to_string(member.device);
      }
    }
    const std::string text =
        why + ": devices {" + missing + "} did not reach " + call->Describe();
    CallBegins();
    Finish(std::move(call), Status(code, text), /*on_submitter=*/false);
  }
}

void Engine::WakeProgress() {
  doorbell_.load()->Ring();
  own_doorbell_.Ring();
}

bool Engine::busy() const {
  const std::lock_guard lock(in_flight_mutex_);
  return in_flight_ > 0;
}

void Engine::ProgressLoop() {
  using Clock = std::chrono::steady_clock;
  const auto progress = [this] {
    const std::lock_guard lock(progress_mutex_);
    return Progress();
  };
  auto next_housekeeping = Clock::now();
  while (!stopping_.load()) {
    bool any = progress();
    for (const auto spin_end = Clock::now() + kSpin;
         !any && busy() && Clock::now() < spin_end;) {
      any = progress();
    }
    if (Clock::now() >= next_housekeeping) {
      Housekeeping();
      next_housekeeping =
          Clock::now() + std::chrono::duration_cast<Clock::duration>(
                             std::chrono::duration<double>(kBusyTickSeconds));
    }
    if (any) continue;
    doorbell_.load()->Wait(busy() ? kBusyTickSeconds : kIdleTickSeconds,
                           [&] { return stopping_.load() || progress(); });
  }
  progress();  // Fails what an Abort just before the end left behind.
}

bool Engine::Progress() {
  std::vector<std::unique_ptr<Call>> arrived;
  std::string abort_reason;
  {
    const std::lock_guard lock(inbox_mutex_);
    arrived.swap(inbox_);
    abort_reason.swap(abort_reason_);
  }
  bool any = !arrived.empty();
  for (std::unique_ptr<Call>& call : arrived) AddToStream(std::move(call));
  HandleLosses();
  for (auto& [id, stream] : streams_) {
    if (!abort_reason.empty()) {
      const std::string who =
          mesh_ ? "rank " + std::to_string(mesh_->process()) + ": " : "";
      stream->Fail(StatusCode::kAborted, who + abort_reason, /*tell=*/true);
    }
    any |= stream->Progress();
  }
  return any;
}

void Engine::AddToStream(std::unique_ptr<Call> call) {
  const std::shared_ptr<const Group> group = call->group;
  const auto refuse = [&](StatusCode code, const std::string& why) {
    const std::string text = why + " (in " + call->Describe() + ")";
    Finish(std::move(call), Status(code, text), false);
  };
  if (!mesh_) {
    return refuse(StatusCode::kInvalidArgument,
                  "a collective spans processes, but smddp_jax.init() was not called");
  }
  if (!disconnected_.empty()) return refuse(StatusCode::kAborted, disconnected_);
  auto [found, created] = streams_.try_emplace(group->id());
  if (created) {
    for (int process : group->processes()) {
      if (mesh_->IsLocal(process)) continue;
      streams_.erase(found);
      return refuse(StatusCode::kInvalidArgument,
                    "rank " + std::to_string(process) + " is on another host");
    }
    const size_t slot_bytes = NextSlotBytes();
    GroupStream::Context context;
    context.mesh = mesh_.get();
    context.workers = workers_.get();
    context.finish = [this](std::unique_ptr<Call> done, const Status& status) {
      const bool on_submitter = done.get() == submitting_;
      Finish(std::move(done), status, on_submitter);
    };
    context.take_offer = [this](uint64_t id, int process) {
      return TakeOffer(id, process);
    };
    context.timeout_seconds = settings_.timeout_seconds;
    found->second = std::make_unique<GroupStream>(group, std::move(context));
    staging_bytes_ += SegmentExchange::BlockBytes(GroupStream::kSlots, slot_bytes);
    if (const Status opened = found->second->Open(slot_bytes); !opened.ok()) {
      found->second->Fail(opened.code(), opened.message(), /*tell=*/false);
    }
  }
  found->second->Add(std::move(call));
}

// Each further group gets at most half of what is left, so that the bound holds for
// any number of groups that matter; a page per slot is the least that works.
size_t Engine::NextSlotBytes() const {
  const size_t used = staging_bytes_.load();
  const size_t left = settings_.staging_bytes > used ? settings_.staging_bytes - used : 0;
  const size_t share = left / 2 / GroupStream::kSlots / kPage * kPage;
  return std::clamp(settings_.segment_bytes / kPage * kPage, kPage,
                    std::max(share, kPage));
}

std::optional<BlockOffer> Engine::TakeOffer(uint64_t group, int process) {
  const std::lock_guard lock(inbox_mutex_);
  auto node = offers_.extract({group, process});
  if (node.empty()) return std::nullopt;
  return std::move(node.mapped());
}

void Engine::HandleLosses() {
  std::vector<std::pair<int, std::string>> losses;
  {
    const std::lock_guard lock(inbox_mutex_);
    losses.swap(losses_);
  }
  for (const auto& [process, why] : losses) {
    const std::string text = mesh_->Describe(process) + " " + why;
    for (auto& [id, stream] : streams_) {
      const auto& members = stream->group().processes();
      if (std::binary_search(members.begin(), members.end(), process)) {
        stream->Lose(text);
      }
    }
  }
}

void Engine::Housekeeping() {
  FailIncomplete(/*all=*/false, StatusCode::kDeadline,
                 "waited " + std::to_string(static_cast<int>(settings_.timeout_seconds)) +
                     " s for other devices of this process");
  const std::lock_guard lock(progress_mutex_);
  for (auto& [id, stream] : streams_) stream->CheckDeadlines();
}

}  // namespace smddp
