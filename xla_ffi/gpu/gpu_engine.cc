// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_engine.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace smddp {
namespace {

constexpr auto kTick = std::chrono::milliseconds(20);

// That has elements: it is known by its address.
const void* FirstResult(const GpuCall& call) {
  size_t first = 0;
  const auto visit = [&](const Piece& piece) { first = piece.tensor; };
  call.signature->space.ForEachPiece({0, std::min<size_t>(call.signature->bytes(), 1)},
                                     visit);
  return call.to[first];
}

}  // namespace

GpuEngine::GpuEngine(Engine& engine, device::Gpus& gpus) : engine_(engine), gpus_(gpus) {
  watchdog_ = Thread(
      "smddp-gpu-watch", [this] { Watch(); },
      [this](const Status& status) { Abort(status.message()); });
}

GpuEngine::~GpuEngine() { Leave("the engine is shutting down"); }

void GpuEngine::Name(const std::map<int, int64_t>& ids) {
  const std::lock_guard lock(mutex_);
  device_of_ = ids;
}

Result<int64_t> GpuEngine::DeviceOf(int ordinal) const {
  const std::lock_guard lock(mutex_);
  const auto found = device_of_.find(ordinal);
  if (found != device_of_.end()) return found->second;
  return Status(StatusCode::kInternal, "GPU " + std::to_string(ordinal) +
                                           " of this process has no device id: "
                                           "smddp_jax was not told of JAX's devices");
}

Result<device::Gpu*> GpuEngine::GpuOf(int64_t device) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [ordinal, id] : device_of_) {
    if (id == device) return gpus_.Get(ordinal);
  }
  return Status(StatusCode::kInternal, "no GPU of this process is device " +
                                           std::to_string(device) +
                                           ": smddp_jax was not told of JAX's devices");
}

Result<GpuQueue*> GpuEngine::QueueOf(int ordinal) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<GpuQueue>& queue = queues_[ordinal];
  if (!queue) {
    auto gpu = gpus_.Get(ordinal);
    SMDDP_RETURN_IF_ERROR(gpu.status());
    queue = std::make_unique<GpuQueue>(**gpu);
  }
  return queue.get();
}

HostGroup* GpuEngine::GroupOf(const GroupPointer& group) {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<HostGroup>& found = groups_[group->id()];
  if (!found) {
    HostGroup::Context context;
    context.engine = &engine_;
    context.gpu_of = [this](int64_t device) { return GpuOf(device); };
    context.on_failure = [this](HostGroup& failed, const Status& why) {
      NoteFailure(failed, why);
    };
    found = std::make_unique<HostGroup>(group, std::move(context));
  }
  return found.get();
}

std::vector<HostGroup*> GpuEngine::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<HostGroup*> all;
  for (const auto& [id, group] : groups_) all.push_back(group.get());
  return all;
}

Status GpuEngine::Prepare(const GroupPointer& group) {
  {
    const std::lock_guard lock(mutex_);
    SMDDP_RETURN_IF_ERROR(left_);
  }
  const Status prepared = GroupOf(group)->Prepare();
  if (!prepared.ok()) Forget(prepared);
  return prepared;
}

template <typename Put>
Status GpuEngine::Run(int ordinal, const GroupPointer& group, const GpuCall& call,
                      device::StreamHandle stream, Put put) {
  auto device = DeviceOf(ordinal);
  SMDDP_RETURN_IF_ERROR(device.status());
  auto queue = QueueOf(ordinal);
  SMDDP_RETURN_IF_ERROR(queue.status());
  calls_.fetch_add(1, std::memory_order_relaxed);
  Status status = Prepare(group);
  if (status.ok()) {
    HostGroup* const host = GroupOf(group);
    status = put(**queue, [&](device::StreamHandle on) {
      return host->Enqueue(*device, call, on);
    });
    WakeWatchdog();
  }
  return Tell(status, **queue, stream);
}

Status GpuEngine::AllReduce(int ordinal, const GroupPointer& group, const GpuCall& call,
                            device::StreamHandle stream) {
  return Run(ordinal, group, call, stream, [&](GpuQueue& queue, const auto& enqueue) {
    return queue.Run(stream, enqueue);
  });
}

Status GpuEngine::Start(int ordinal, const GroupPointer& group, const GpuCall& call,
                        device::StreamHandle stream) {
  return Run(ordinal, group, call, stream, [&](GpuQueue& queue, const auto& enqueue) {
    return queue.Start(FirstResult(call), stream, enqueue);
  });
}

Status GpuEngine::Done(int ordinal, const std::string& label, const void* result,
                       device::StreamHandle stream) {
  auto queue = QueueOf(ordinal);
  SMDDP_RETURN_IF_ERROR(queue.status());
  return Tell((*queue)->Done(label, result, stream), **queue, stream);
}

void GpuEngine::NoteFailure(HostGroup& group, const Status& why) {
  failed_.fetch_add(1, std::memory_order_relaxed);
  // Leaving takes nothing from anybody whose results are there.
  if (stopping_.load() && group.in_flight() == 0) return;
  const std::lock_guard lock(untold_mutex_);
  untold_.push_back(why);
}

void GpuEngine::Forget(const Status& told) {
  const std::lock_guard lock(untold_mutex_);
  std::erase_if(untold_,
                [&](const Status& untold) { return untold.message() == told.message(); });
}

// XLA ends a run that fails and takes its buffers back: not before what uses them is
// over.
Status GpuEngine::Tell(const Status& status, GpuQueue& queue,
                       device::StreamHandle stream) {
  if (!status.ok()) Forget(status);
  const Status told = status.ok() ? TakeUntold() : status;
  if (told.ok()) return told;
  [[maybe_unused]] const Status held = queue.FollowAll(stream);
  return told;
}

Status GpuEngine::TakeUntold() {
  const std::lock_guard lock(untold_mutex_);
  if (untold_.empty()) return {};
  Status status = std::move(untold_.front());
  untold_.pop_front();
  return status;
}

void GpuEngine::Abort(const std::string& reason) {
  for (HostGroup* group : groups()) {
    if (group->in_flight() > 0) group->Fail(Aborted(reason), HostGroup::Tell::kAll);
  }
}

Status GpuEngine::Aborted(const std::string& reason) const {
  const std::string rank =
      engine_.mesh() ? std::to_string(engine_.mesh()->process()) : "0";
  return Status(StatusCode::kAborted, "rank " + rank + ": " + reason);
}

void GpuEngine::Leave(const std::string& reason) {
  if (stopping_.exchange(true)) return;
  {
    const std::lock_guard lock(mutex_);
    left_ = Aborted(reason);
  }
  // The peers hear of it when we say goodbye, and may need what we have sent till then.
  for (HostGroup* group : groups()) {
    const bool idle = group->in_flight() == 0;
    group->Fail(Aborted(reason),
                idle ? HostGroup::Tell::kNobody : HostGroup::Tell::kOtherHosts);
  }
  WakeWatchdog();
  watchdog_.Join();
}

uint64_t GpuEngine::in_flight() const {
  uint64_t calls = 0;
  for (const HostGroup* group : groups()) calls += group->in_flight();
  return calls;
}

bool GpuEngine::Drain(double seconds) {
  const Deadline deadline = Deadline::After(seconds);
  while (in_flight() > 0) {
    if (deadline.Passed()) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

GpuEngine::Stats GpuEngine::stats() const {
  Stats stats{calls_, failed_, 0, 0};
  for (const HostGroup* group : groups()) {
    stats.in_flight += group->in_flight();
    stats.staging_bytes += group->staging_bytes();
  }
  return stats;
}

void GpuEngine::WakeWatchdog() {
  if (watching_.exchange(true) && !stopping_.load()) return;
  const std::lock_guard lock(watch_mutex_);
  watch_.notify_all();
}

void GpuEngine::Watch() {
  while (!stopping_.load()) {
    // Asked first: what ended since is still looked at.
    const bool any = in_flight() > 0;
    const auto now = Deadline::Clock::now();
    for (HostGroup* group : groups()) group->Look(now);
    std::unique_lock lock(watch_mutex_);
    if (any) {
      watch_.wait_for(lock, kTick, [&] { return stopping_.load(); });
      continue;
    }
    // Who enqueues now finds us asleep and wakes us.
    watching_.store(false);
    if (in_flight() > 0) continue;
    watch_.wait(lock, [&] { return watching_.load() || stopping_.load(); });
  }
}

}  // namespace smddp
