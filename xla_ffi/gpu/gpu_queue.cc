// SPDX-License-Identifier: Apache-2.0
#include "gpu/gpu_queue.h"

namespace smddp {

Status GpuQueue::Run(device::StreamHandle stream, const Enqueue& enqueue) {
  const std::lock_guard lock(mutex_);
  return RunLocked(stream, enqueue);
}

Status GpuQueue::RunLocked(device::StreamHandle stream, const Enqueue& enqueue) {
  if (order_ == nullptr) {
    auto order = gpu_.NewStream();
    SMDDP_RETURN_IF_ERROR(order.status());
    order_ = *order;
  } else if (stream != last_) {
    SMDDP_RETURN_IF_ERROR(gpu_.Follow(stream, order_));
  }
  const Status enqueued = enqueue(stream);
  // Also behind what was enqueued in part.
  SMDDP_RETURN_IF_ERROR(gpu_.Follow(order_, stream));
  last_ = stream;
  return enqueued;
}

Status GpuQueue::Start(const void* result, device::StreamHandle stream,
                       const Enqueue& enqueue) {
  const std::lock_guard lock(mutex_);
  auto ours = TakeStream();
  SMDDP_RETURN_IF_ERROR(ours.status());
  // One that nobody asked for is over: its result's memory is used again.
  if (const auto [found, fresh] = started_.try_emplace(result, *ours); !fresh) {
    free_.push_back(found->second);
    found->second = *ours;
  }
  SMDDP_RETURN_IF_ERROR(gpu_.Follow(*ours, stream));
  return RunLocked(*ours, enqueue);
}

Status GpuQueue::Done(const std::string& label, const void* result,
                      device::StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  const auto found = started_.find(result);
  if (found == started_.end()) {
    return Status(StatusCode::kInternal,
                  label +
                      ": done() does not find what start() began: XLA moved its result "
                      "between the two. Use psum instead of psum_start here");
  }
  const device::StreamHandle ours = found->second;
  started_.erase(found);
  free_.push_back(ours);
  return gpu_.Follow(stream, ours);
}

Status GpuQueue::FollowAll(device::StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  if (order_ == nullptr || stream == last_) return {};
  return gpu_.Follow(stream, order_);
}

Result<device::StreamHandle> GpuQueue::TakeStream() {
  if (free_.empty()) return gpu_.NewStream();
  const device::StreamHandle stream = free_.back();
  free_.pop_back();
  return stream;
}

}  // namespace smddp
