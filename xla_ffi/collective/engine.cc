// SPDX-License-Identifier: Apache-2.0
#include "collective/engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "collective/local_stage.h"
#include "collective/result_pages.h"

namespace smddp {
namespace {

// Up to here a collective is done sooner than a sleeping thread wakes up, so the
// thread that brought the last part does the work. Bytes read and written.
constexpr size_t kInlineBytes = size_t{256} << 10;
// The same between processes, where three threads would have to wake each other.
constexpr size_t kInlineHostBytes = size_t{2} << 20;
// How long the progress thread polls before it sleeps: about what waking it costs.
constexpr auto kSpin = std::chrono::microseconds(20);
constexpr double kBusyTickSeconds = 0.05;
constexpr double kIdleTickSeconds = 1.0;
// How long leaving waits for a slow network to take what is left.
constexpr double kFlushSeconds = 10.0;
// Every one of these may block in one of XLA's own collectives.
constexpr size_t kMaxCompletionThreads = 1024;

size_t Cores() { return std::max(1u, std::thread::hardware_concurrency()); }

// About a microsecond that costs neither memory traffic nor the sibling thread's time.
void Pause() {
  for (int i = 0; i < 32; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
}

size_t Traffic(const Call& call) {
  return call.signature->bytes() * call.local.size() * 2;
}

}  // namespace

Engine::Engine(const Settings& settings)
    : settings_(settings),
      completions_(Cores(), kMaxCompletionThreads),
      workers_(settings.threads > 0 ? static_cast<size_t>(settings.threads) : Cores()),
      rendezvous_(settings.timeout_seconds),
      streams_(settings, workers_,
               [this](std::unique_ptr<Call> call, const Status& status) {
                 const bool on_submitter = call.get() == submitting_;
                 Finish(std::move(call), status, on_submitter);
               },
               {[this] { WakeProgress(); }, [this] { GoOn(); }}) {
  progress_thread_ = Thread(
      "smddp-progress", [this] { ProgressLoop(); },
      [this](const Status& status) { Abort(status.message()); });
}

Engine::~Engine() {
  Abort("the engine is shutting down");
  stopping_.store(true);
  WakeProgress();
  progress_thread_.Join();
  if (Network* network = streams_.network()) network->Stop();
}

Status Engine::Connect(int process, int processes, KeyValueStore& store) {
  if (streams_.mesh() != nullptr) {
    return Status(StatusCode::kInvalidArgument,
                  "this process has joined a job before; start a new process");
  }
  auto peers = streams_.Meet(process, processes, store);
  SMDDP_RETURN_IF_ERROR(peers.status());
  {
    const std::lock_guard lock(progress_mutex_);
    streams_.SetPeers(std::move(*peers));
    doorbell_.store(&streams_.mesh()->my_page().doorbell);
    // Alone on a host there is nobody to see; and with more processes than cores, polling
    // keeps those from working for whom we wait.
    const size_t here = streams_.mesh()->local_processes().size();
    polls_.store(here > 1 && here <= Cores());
  }
  own_doorbell_.Ring();
  return Status();
}

void Engine::Disconnect(const std::string& reason) {
  {
    const std::lock_guard lock(progress_mutex_);
    streams_.Leave(reason);
  }
  // Others may still need sums that are on their way from here.
  if (Network* network = streams_.network()) network->Leave(reason, kFlushSeconds);
}

void Engine::Abort(const std::string& reason) {
  FailIncomplete(/*all=*/true, StatusCode::kAborted, reason);
  {
    const std::lock_guard lock(inbox_mutex_);
    abort_reason_ = reason;
  }
  WakeProgress();
}

void Engine::FailGroup(std::shared_ptr<const Group> group, std::string reason) {
  {
    const std::lock_guard lock(inbox_mutex_);
    failing_.emplace_back(std::move(group), std::move(reason));
  }
  WakeProgress();
}

bool Engine::Drain(double seconds) {
  std::unique_lock lock(in_flight_mutex_);
  return none_in_flight_.wait_for(lock, std::chrono::duration<double>(seconds),
                                  [this] { return in_flight_ == 0; });
}

Engine::Stats Engine::stats() const {
  Network::Counters wire;
  if (Network* network = streams_.network()) wire = network->counters();
  const std::lock_guard lock(in_flight_mutex_);
  return {calls_, bytes_, host_calls_, failed_, in_flight_, streams_.staging_bytes(),
          wire};
}

void Engine::AfterForkInChild() {
  forked_.store(true);
  if (streams_.mesh() != nullptr) streams_.mesh()->CloseInForkedChild();
  if (streams_.network() != nullptr) streams_.network()->CloseInForkedChild();
}

void Engine::Submit(OpInstance& op, int64_t run_id, int64_t device,
                    const std::shared_ptr<const Group>& group,
                    const std::shared_ptr<const Signature>& signature,
                    Participant participant) {
  if (forked_.load()) {
    participant.done(Status(StatusCode::kAborted,
                            op.label +
                                ": a forked child cannot take part in collectives; "
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
  if (settings_.huge_pages) AdviseHugePages(*call);
  if (group->one_process()) {
    RunLocal(std::move(call));
  } else {
    host_calls_.fetch_add(1, std::memory_order_relaxed);
    RunHost(std::move(call));
  }
}

void Engine::RunLocal(std::unique_ptr<Call> call) {
  if (Traffic(*call) <= kInlineBytes) {
    ExchangeLocal(*call, {0, call->signature->space.total()});
    Finish(std::move(call), Status(), /*on_submitter=*/true);
    return;
  }
  const size_t tasks = LocalTasks(*call, workers_.size());
  // std::function wants copyable captures.
  auto owner = std::make_shared<std::unique_ptr<Call>>(std::move(call));
  workers_.Start(
      tasks,
      [owner, tasks](size_t index) {
        ExchangeLocal(**owner, LocalTask(**owner, tasks, index));
      },
      [this, owner] { Finish(std::move(*owner), Status(), /*on_submitter=*/false); });
}

void Engine::RunHost(std::unique_ptr<Call> call) {
  const bool small = Traffic(*call) <= kInlineHostBytes;
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

void Engine::Finish(std::unique_ptr<Call> call, const Status& status, bool on_submitter) {
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

void Engine::GoOn() {
  {
    const std::unique_lock lock(progress_mutex_, std::try_to_lock);
    if (lock.owns_lock()) {
      Progress();
      return;
    }
  }
  WakeProgress();
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
         !any && polls_.load() && busy() && Clock::now() < spin_end;) {
      Pause();
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
  std::vector<std::pair<std::shared_ptr<const Group>, std::string>> failing;
  {
    const std::lock_guard lock(inbox_mutex_);
    failing.swap(failing_);
    arrived.swap(inbox_);
    abort_reason.swap(abort_reason_);
  }
  for (std::unique_ptr<Call>& call : arrived) streams_.Add(std::move(call));
  for (const auto& [group, reason] : failing) streams_.FailGroup(group, reason);
  if (!abort_reason.empty()) streams_.Abort(abort_reason);
  return streams_.Progress() || !arrived.empty();
}

void Engine::Housekeeping() {
  FailIncomplete(/*all=*/false, StatusCode::kDeadline,
                 "waited " + std::to_string(static_cast<int>(settings_.timeout_seconds)) +
                     " s for other devices of this process");
  const std::lock_guard lock(progress_mutex_);
  streams_.CheckDeadlines();
}

}  // namespace smddp
