// SPDX-License-Identifier: Apache-2.0
#include "tests/device/host_gpus.h"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "tests/device/host_kernels.h"

namespace smddp::device::testing {
namespace {

constexpr size_t kAlignment = 256;  // As cudaMalloc's.

// What a handle says of the memory that it names.
struct Exported {
  const HostGpus* process;
  char* memory;
  size_t bytes;
};
static_assert(sizeof(Exported) <= sizeof(MemoryHandle));

HostStream& StreamOf(StreamHandle stream) { return *static_cast<HostStream*>(stream); }

Status Invalid(const std::string& what) {
  return Status(StatusCode::kInvalidArgument, "host GPU: " + what);
}

}  // namespace

HostStream::HostStream() : thread_([this] { Run(); }) {}

HostStream::~HostStream() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void HostStream::Put(std::function<void()> work) {
  {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
  }
  changed_.notify_all();
}

void HostStream::Finish() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return work_.empty() && !busy_; });
}

void HostStream::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return ending_ || !work_.empty(); });
    if (work_.empty()) return;
    const std::function<void()> work = std::move(work_.front());
    work_.pop_front();
    busy_ = true;
    lock.unlock();
    work();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

Result<char*> HostGpu::New(size_t bytes, std::map<const char*, Memory>& memories) {
  const size_t size = (std::max<size_t>(bytes, 1) + kAlignment - 1) / kAlignment;
  auto* memory = static_cast<char*>(std::aligned_alloc(kAlignment, size * kAlignment));
  std::memset(memory, 0, size * kAlignment);
  const std::lock_guard lock(mutex_);
  memories[memory] = {bytes, {memory, [](char* m) { std::free(m); }}};
  return memory;
}

Result<char*> HostGpu::Allocate(size_t bytes) { return New(bytes, own_); }
Result<char*> HostGpu::AllocateHost(size_t bytes) { return New(bytes, host_); }

Result<MemoryHandle> HostGpu::Export(char* memory) {
  const std::lock_guard lock(mutex_);
  const auto found = own_.find(memory);
  if (found == own_.end()) return Invalid("exports what it did not allocate");
  const Exported exported{&gpus_, memory, found->second.bytes};
  MemoryHandle handle{};
  std::memcpy(handle.data(), &exported, sizeof(exported));
  return handle;
}

Result<char*> HostGpu::Import(const MemoryHandle& handle) {
  Exported exported;
  std::memcpy(&exported, handle.data(), sizeof(exported));
  if (exported.process == &gpus_) return Invalid("imports memory of its own process");
  if (gpus_.refuses_peers()) return Invalid("peer access is not supported");
  const std::lock_guard lock(mutex_);
  if (!imported_.emplace(exported.memory, exported.bytes).second) {
    return Invalid("imports memory twice");
  }
  return exported.memory;
}

Status HostGpu::Reach(const Gpu& peer) {
  if (gpus_.refuses_peers()) return Invalid("peer access is not supported");
  const std::lock_guard lock(mutex_);
  reached_.push_back(static_cast<const HostGpu*>(&peer));
  return {};
}

bool HostGpu::Reaches(const char* memory) const {
  const auto inside = [&](const char* begin, size_t bytes) {
    return begin <= memory && memory < begin + bytes;
  };
  std::vector<const HostGpu*> peers;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [begin, bytes] : imported_) {
      if (inside(begin, bytes)) return true;
    }
    peers = reached_;
  }
  peers.push_back(this);
  for (const HostGpu* peer : peers) {
    const std::lock_guard lock(peer->mutex_);
    for (const auto& [begin, own] : peer->own_) {
      if (inside(begin, own.bytes)) return true;
    }
  }
  return false;
}

Status HostGpu::Launch(HostFunction function, Call call, StreamHandle stream) {
  if (function == nullptr) return Invalid("there is no such kernel");
  for (uint32_t r = 0; r < call.ranks; ++r) {
    if (!Reaches(call.staging[r]) ||
        !Reaches(reinterpret_cast<const char*>(call.flags[r]))) {
      return Invalid("does not reach the memory of rank " + std::to_string(r));
    }
  }
  call.blocks = std::min(call.blocks, shape_.blocks);
  StreamOf(stream).Put([function, call, threads = shape_.threads] {
    Stream({{function, call}}, threads);
  });
  return {};
}

Status HostGpu::Reduce(ReduceOp op, DType in, DType out, const Call& call,
                       StreamHandle stream) {
  return Launch(FindHostReduce(op, in, out), call, stream);
}

Status HostGpu::AllGather(DType in, DType out, const Call& call, StreamHandle stream) {
  return Launch(FindHostGather({in, out, call.scale}), call, stream);
}

Status HostGpu::Copy(void* to, const void* from, size_t bytes, StreamHandle stream) {
  StreamOf(stream).Put([=] { std::memcpy(to, from, bytes); });
  return {};
}

Status HostGpu::Write(uint64_t* word, uint64_t value, StreamHandle stream) {
  StreamOf(stream).Put([=] { HostExecution::StoreRelease(word, value); });
  return {};
}

Status HostGpu::AwaitAtLeast(uint64_t* word, uint64_t value, StreamHandle stream) {
  StreamOf(stream).Put([=] {
    while (HostExecution::LoadAcquire(word) < value) {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  });
  return {};
}

Status HostGpu::CallHost(void (*function)(void*), void* argument, StreamHandle stream) {
  StreamOf(stream).Put([=] { function(argument); });
  return {};
}

Result<StreamHandle> HostGpu::NewStream() {
  const std::lock_guard lock(mutex_);
  streams_.push_back(std::make_unique<HostStream>());
  return static_cast<StreamHandle>(streams_.back().get());
}

Status HostGpu::Follow(StreamHandle stream, StreamHandle earlier) {
  struct Event {
    std::mutex mutex;
    std::condition_variable changed;
    bool recorded = false;
  };
  const auto event = std::make_shared<Event>();
  StreamOf(earlier).Put([event] {
    const std::lock_guard lock(event->mutex);
    event->recorded = true;
    event->changed.notify_all();
  });
  StreamOf(stream).Put([event] {
    std::unique_lock lock(event->mutex);
    event->changed.wait(lock, [&] { return event->recorded; });
  });
  return {};
}

void HostGpu::Finish(StreamHandle stream) { StreamOf(stream).Finish(); }

void HostGpu::FinishAll() {
  std::vector<HostStream*> streams;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& stream : streams_) streams.push_back(stream.get());
  }
  for (HostStream* stream : streams) stream->Finish();
}

HostGpus::HostGpus(int count, HostGpu::Shape shape) {
  for (int i = 0; i < count; ++i) {
    gpus_.push_back(std::make_unique<HostGpu>(*this, i, shape));
  }
}

Result<Gpu*> HostGpus::Get(int ordinal) {
  if (ordinal < 0 || ordinal >= static_cast<int>(gpus_.size())) {
    return Invalid("there is no GPU " + std::to_string(ordinal));
  }
  return static_cast<Gpu*>(gpus_[static_cast<size_t>(ordinal)].get());
}

void HostGpus::FinishAll() {
  for (const auto& gpu : gpus_) gpu->FinishAll();
}

}  // namespace smddp::device::testing
